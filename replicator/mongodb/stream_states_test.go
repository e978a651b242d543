package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

// I5: what the source overwrote before it was replicated is reported, counted, and missing at the destination as holes of seq.
func TestALossOfTheSourceIsReportedAndSeenAtTheDestination(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{Size: 1_000_000, Max: 50})
	o := observeStream(t, e.out, "out")
	cfg := mongodb.StreamRouteConfig{Max: 10_000}
	e.send(40, "a/1")
	r := runStream(t, e.route(cfg))
	r.applied(40)
	r.stop()
	e.send(200, "a/1")
	var gaps []record.Gap
	cfg.Link.OnGap = func(g record.Gap) { gaps = append(gaps, g) }
	r = runStream(t, e.route(cfg))
	r.applied(50)
	r.live()
	s := r.link.Status()
	lost, n := r.link.Lost()
	r.stop()
	if lost != 150 || n != 1 || len(gaps) != 1 || gaps[0].Exact() != 150 || gaps[0].Cause != record.CauseRollover {
		t.Errorf("lost %d in %d gaps, %v; want 150 by rollover", lost, n, gaps)
	}
	if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, "lost 150 messages") {
		t.Errorf("the notes do not say it: %q", notes)
	}
	o.messages(90)
	if o.holes["a/1"] != 150 {
		t.Errorf("holes at the destination: %v, want 150 of a/1", o.holes)
	}
}

// A source that is dropped and created again is another stream: the route ends and says so, now and at every start, until it is resynced.
func TestARecreatedSourceEndsTheRouteWithAReason(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	o := observeStream(t, e.out, "out")
	e.send(100, "a/1")
	r := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.live()
	if err := e.in.Collection("in").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.ensure(stream.Config{Size: 1_000_000}) // empty: nothing but the look at the source tells
	for range 2 {
		if _, ok := errors.AsType[*replicator.RecreatedError](r.wait()); !ok {
			t.Fatalf("Run: %v, want *RecreatedError", r.wait())
		}
		if s := r.link.Status(); s.Phase != replicator.PhaseLostHistory || !strings.Contains(s.Reason, "created again") || !strings.Contains(s.Reason, "resync") {
			t.Errorf("phase %s, reason %q", s.Phase, s.Reason)
		}
		e.send(10, "b/1")
		r = runStream(t, e.route(mongodb.StreamRouteConfig{}))
	}
	_ = r.wait()
	r = runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Resync: true}}))
	r.applied(20)
	r.stop()
	o.messages(120)
	o.whole()
}

// The same while messages come: nothing of the new stream is written.
func TestMessagesOfARecreatedSourceAreNotMixedIn(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	e.send(100, "a/1")
	r := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{ClockEvery: time.Hour}}))
	r.applied(100)
	if err := e.in.Collection("in").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.ensure(stream.Config{Size: 1_000_000})
	e.send(10, "b/1")
	if _, ok := errors.AsType[*replicator.RecreatedError](r.wait()); !ok {
		t.Fatalf("Run: %v, want *RecreatedError", r.wait())
	}
	if got := streamAll(t, e.out, "out"); len(got) != 100 {
		t.Errorf("the destination has %d messages, want 100", len(got))
	}
}

// The checkpoint moves on when the filter matches nothing, and a new process goes on there.
func TestARouteWhoseFilterMatchesNothingMovesOn(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	filter, err := bson.Marshal(bson.D{{Key: "data", Value: "nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Filter: filter}}
	e.send(5000, "a/1")
	r := runStream(t, e.route(cfg))
	r.live()
	r.until("the checkpoint is at the end", func(s replicator.Status) bool { return s.Totals.Scanned == 5000 && s.Checkpoint.Time == s.Head.Time })
	s := r.link.Status()
	r.stop()
	if s.Totals.Matched != 0 || s.Totals.Applied != 0 || s.Copy.Scanned != 5000 {
		t.Errorf("scanned %d, matched %d, applied %d; want 5000, 0, 0", s.Totals.Scanned, s.Totals.Matched, s.Totals.Applied)
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "by design") {
		t.Errorf("notes %q", s.Notes)
	}
	e.send(7, "a/1")
	r = runStream(t, e.route(cfg))
	r.live()
	if s := r.link.Status(); s.Totals.Scanned > 7 {
		t.Errorf("a new run scanned %d messages, want only the 7 new ones", s.Totals.Scanned)
	}
	r.stop()
	cfg.Link.Filter = nil
	r = runStream(t, e.route(cfg))
	if m, ok := errors.AsType[*replicator.MismatchError](r.wait()); !ok || m.What != "filter" {
		t.Errorf("with another filter: %v, want *MismatchError", r.wait())
	}
}

// Subject selects; what it leaves out is a hole by design, and the order is kept.
func TestASubjectSelectsMessages(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	var docs []bson.D
	for i := range 300 {
		docs = append(docs, e.message("a/1", []string{"eu.de", "us.ny", "eu.fr"}[i%3]))
	}
	e.insert(docs)
	r := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Subject: "eu.*", Until: replicator.UntilCopied}}))
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if s := r.link.Status(); s.Totals.Matched != 200 || s.Totals.Scanned != 300 {
		t.Errorf("scanned %d, matched %d", s.Totals.Scanned, s.Totals.Matched)
	}
	if got := streamAll(t, e.out, "out"); len(got) != 200 {
		t.Errorf("%d messages at the destination, want 200", len(got))
	}
}

// A stream of another program: natural order, ts as it is, nothing twice, also when the checkpoint is lost.
func TestAnotherProgramsStreamKeepsItsOrderAndItsTS(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	if err := e.in.Collection("in").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.in.CreateCollection(t.Context(), "in", options.CreateCollection().SetCapped(true).SetSizeInBytes(1_000_000)); err != nil {
		t.Fatal(err)
	}
	put := func(from, to int) {
		var docs []bson.D
		for i := from; i < to; i++ { // _ids of several types, against the order of the numbers
			id := any(fmt.Sprintf("id %d", 1000-i))
			if i%3 == 0 {
				id = int64(1000 - i)
			}
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "ts", Value: bson.Timestamp{T: uint32(5000 - i), I: 1}}, {Key: "n", Value: int32(i)}})
		}
		e.insert(docs)
	}
	put(0, 300)
	r := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.applied(300)
	r.live()
	if s := r.link.Status(); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "without src and seq") {
		t.Errorf("notes %q", s.Notes)
	}
	r.stop()
	put(300, 400)
	r = runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.applied(100)
	r.stop()
	r = runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Resync: true}}))
	r.live()
	r.until("everything is seen again", func(s replicator.Status) bool { return s.Totals.Scanned == 400 })
	if s := r.link.Status(); s.Totals.Applied != 0 {
		t.Errorf("%d messages were written again", s.Totals.Applied)
	}
	r.stop()
	got, want := streamAll(t, e.out, "out"), streamAll(t, e.in, "in")
	if len(got) != 400 || len(want) != 400 {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range got {
		if string(got[i]) != string(want[i]) {
			t.Fatalf("message %d is %s, want %s", i, got[i], want[i])
		}
	}
}

// A stream needs no oplog: standalone servers can be source and destination.
func TestStandaloneServersReplicateStreams(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	e.send(1500, "a/1", "b/1")
	r := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.live()
	e.send(10, "a/1")
	r.applied(1510)
	if s := r.link.Status(); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "replica set") {
		t.Errorf("notes %q", s.Notes)
	}
	r.stop()
	if got := streamAll(t, e.out, "out"); len(got) != 1510 {
		t.Errorf("%d messages at the destination, want 1510", len(got))
	}
}

// The second process of a route takes it over; the first one ends and says who has it.
func TestTwoProcessesOfOneStreamRouteFenceEachOther(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	o := observeStream(t, e.out, "out")
	e.send(1000, "a/1", "b/1")
	first := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	first.live()
	second := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Owner: "the second"}}))
	second.live()
	e.send(1000, "a/1", "b/1")
	fenced, ok := errors.AsType[*record.FencedError](first.wait())
	if !ok || fenced.Owner != "the second" {
		t.Fatalf("the first one: %v, want *FencedError", first.wait())
	}
	if s := first.link.Status(); s.Phase != replicator.PhaseFailed {
		t.Errorf("the first one is %s", s.Phase)
	}
	e.send(100, "a/1")
	o.messages(2100)
	second.stop()
	o.whole()
}

func TestAStreamRouteIsPausedResumedResyncedAndFinalized(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	o := observeStream(t, e.out, "out")
	e.send(100, "a/1")
	link := e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Paused: true}})
	if err := link.Pause(t.Context()); !errors.Is(err, replicator.ErrNotRunning) {
		t.Errorf("before Run: %v", err)
	}
	r := runStream(t, link)
	r.until("paused", func(s replicator.Status) bool {
		return s.Phase == replicator.PhasePaused && s.Paused == replicator.PhaseCopying
	})
	if err := link.Finalize(t.Context()); !errors.Is(err, replicator.ErrNotLive) {
		t.Errorf("Finalize of an incomplete destination: %v", err)
	}
	if err := link.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.live()
	if err := link.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := link.Status()
	e.send(50, "a/1")
	r.until("the source is ahead", func(s replicator.Status) bool { return s.Head.Time != before.Head.Time })
	if s := link.Status(); s.Totals.Applied != 100 || s.Phase != replicator.PhasePaused || s.Paused != replicator.PhaseLive {
		t.Errorf("paused: %+v", s)
	}
	if err := link.Resync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until("all is seen again", func(s replicator.Status) bool { return s.Totals.Scanned == 250 && s.Phase == replicator.PhaseLive })
	e.send(500, "a/1")
	if err := link.Finalize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); err != nil || link.Status().Phase != replicator.PhaseFinalized {
		t.Errorf("after Finalize: %v, phase %s", err, link.Status().Phase)
	}
	if done, left, err := link.Retry(t.Context()); done != 0 || left != 0 || err != nil {
		t.Errorf("Retry: %d, %d, %v", done, left, err)
	}
	if err := link.Resume(t.Context()); !errors.Is(err, replicator.ErrNotRunning) {
		t.Errorf("after Run: %v", err)
	}
	o.messages(650)
	o.whole()
}

func TestADestinationThatHoldsMessagesIsRefusedUnlessTold(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	e.send(10, "a/1")
	if _, err := stream.Ensure(t.Context(), e.out, "out", stream.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.out.Collection("out").InsertOne(t.Context(), bson.D{{Key: "x", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := runStream(t, e.route(mongodb.StreamRouteConfig{})).wait(); !errors.Is(err, replicator.ErrNotEmpty) {
		t.Errorf("got %v, want ErrNotEmpty", err)
	}
	r := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Existing: replicator.MergeExisting, Until: replicator.UntilLive}}))
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if got := streamAll(t, e.out, "out"); len(got) != 11 {
		t.Errorf("%d messages, want 11", len(got))
	}
	if err := e.out.Collection("out").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = runStream(t, e.route(mongodb.StreamRouteConfig{}))
	if m, ok := errors.AsType[*replicator.MismatchError](r.wait()); !ok || m.What != "destination stream" {
		t.Errorf("a destination that was dropped: %v, want *MismatchError", r.wait())
	}
}

func TestAMessageThatTheDestinationRefusesEndsTheRouteThere(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	e.send(100, "a/1")
	if err := e.out.CreateCollection(t.Context(), "out", options.CreateCollection().SetCapped(true).SetSizeInBytes(1_000_000).
		SetValidator(bson.D{{Key: "seq", Value: bson.D{{Key: "$lt", Value: 61}}}})); err != nil {
		t.Fatal(err)
	}
	r := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	if refused, ok := errors.AsType[*replicator.StreamRefusedError](r.wait()); !ok || refused.Position.IsZero() {
		t.Fatalf("got %v, want *StreamRefusedError", r.wait())
	}
	if got := streamAll(t, e.out, "out"); len(got) != 60 {
		t.Errorf("%d messages, want the 60 before it", len(got))
	}
	if err := e.out.RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "out"}, {Key: "validator", Value: bson.D{}}}).Err(); err != nil {
		t.Fatal(err)
	}
	r = runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.applied(40)
	r.stop()
	if got := streamAll(t, e.out, "out"); len(got) != 100 {
		t.Errorf("%d messages, want 100", len(got))
	}
}

func TestWhatCannotBeReplicatedIsSaid(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	fails := func(want error) {
		t.Helper()
		if err := runStream(t, e.route(mongodb.StreamRouteConfig{})).wait(); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	in := e.nsIn
	e.nsOut = in
	fails(replicator.ErrLoop)
	e.nsIn.Coll = "nothing"
	fails(stream.ErrNotFound)
	e.nsIn, e.nsOut = in, record.Namespace{DB: e.out.Name(), Coll: "plain"}
	if err := e.out.CreateCollection(t.Context(), "plain"); err != nil {
		t.Fatal(err)
	}
	if err := runStream(t, e.route(mongodb.StreamRouteConfig{})).wait(); !errors.As(err, new(*stream.KindError)) {
		t.Errorf("a destination that is not capped: %v", err)
	}
	for name, cfg := range map[string]replicator.StreamConfig{
		"a subject": {Subject: "a..b"}, "a filter": {Filter: bson.Raw("x")}, "a policy": {Existing: replicator.DropExisting}, "a batch": {Batch: -1},
	} {
		if _, _, err := mongodb.OpenStreamRoute(d.Options(), d.Options(), e.nsIn, e.nsOut, mongodb.StreamRouteConfig{Link: cfg}); err == nil {
			t.Errorf("%s that makes no sense is accepted", name)
		}
	}
}

// The checkpoint is one of package checkpoint, at the destination, under the route's name.
func TestTheCheckpointOfAStreamRouteIsAtTheDestination(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	e.send(100, "a/1", "b/1")
	r := runStream(t, e.route(mongodb.StreamRouteConfig{}))
	r.applied(100)
	r.stop()
	store, err := checkpoint.NewMongo(e.out.Client().Database("capstan").Collection(mongodb.StreamCheckpoints), plainStreamDoer{}, checkpoint.MongoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := store.Load(t.Context(), e.name)
	if err != nil {
		t.Fatal(err)
	}
	if cp.Marks["a/1"] != 50 || cp.Marks["b/1"] != 50 || cp.Position.IsZero() || cp.Stream != e.nsIn.String()+" > "+e.nsOut.String() {
		t.Errorf("the checkpoint is %+v", cp)
	}
}

// plainStreamDoer runs a step once.
type plainStreamDoer struct{}

func (plainStreamDoer) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

func (plainStreamDoer) DoRead(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}
