package tailer

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

func insertDoc(t testing.TB, coll *mongo.Collection, id any, extra ...bson.E) {
	t.Helper()
	if _, err := coll.InsertOne(t.Context(), doc(id, extra...)); err != nil {
		t.Fatal(err)
	}
}

func ops(rs []record.Record) []string {
	var out []string
	for _, r := range rs {
		s := r.Change.Op
		if n := r.Change.Namespace.Coll; n != "" {
			s += " " + n
		}
		out = append(out, s)
	}
	return out
}

func sameText(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestAnEventCarriesWhatHappened(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	before := time.Now().Add(-time.Minute)
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	insertDoc(t, coll, 1, bson.E{Key: "a", Value: 1})
	mustUpdate(t, coll, doc(1), bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 2}}}})
	if _, err := coll.ReplaceOne(t.Context(), doc(1), bson.D{{Key: "b", Value: 3}}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.DeleteOne(t.Context(), doc(1)); err != nil {
		t.Fatal(err)
	}
	rs := events(t, c, 4)
	sameText(t, ops(rs), "insert s", "update s", "replace s", "delete s")
	for _, r := range rs {
		ch := r.Change
		if key(r) != 1 || ch.Namespace.DB != coll.Database().Name() || ch.Time != r.Position.TS || ch.Wall.Before(before) || ch.Txn != "" || ch.UUID != "" || !ch.OnDocument() {
			t.Errorf("%s: %+v at %s", ch.Op, ch, r.Position)
		}
	}
	if rs[0].Change.Document.String() != `{"_id": {"$numberInt":"1"},"a": {"$numberInt":"1"}}` || rs[2].Change.Document.String() != `{"_id": {"$numberInt":"1"},"b": {"$numberInt":"3"}}` {
		t.Errorf("documents %s and %s", rs[0].Change.Document, rs[2].Change.Document)
	}
	if rs[1].Change.Document != nil || rs[3].Change.Document != nil || rs[1].Change.Description.Lookup("updatedFields", "a").AsInt64() != 2 {
		t.Errorf("update: %s, %s", rs[1].Change.Document, rs[1].Change.Description)
	}
}

func mustUpdate(t testing.TB, coll *mongo.Collection, filter, update any) {
	t.Helper()
	if _, err := coll.UpdateOne(t.Context(), filter, update); err != nil {
		t.Fatal(err)
	}
}

func TestTheScopeIsACollectionADatabaseOrTheCluster(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	a, b := d.DB(t), d.DB(t)
	mine := []bson.D{{{Key: "$match", Value: bson.D{{Key: "ns.db", Value: bson.D{{Key: "$in", Value: bson.A{a.Name(), b.Name()}}}}}}}}
	one := watchOpen(t, d, a.Name(), "s", ChangesConfig{})
	db := watchOpen(t, d, a.Name(), "", ChangesConfig{})
	all := watchOpen(t, d, "", "", ChangesConfig{Pipeline: mine})
	insertDoc(t, a.Collection("s"), 1)
	insertDoc(t, a.Collection("other"), 2)
	insertDoc(t, b.Collection("s"), 3)
	insertDoc(t, a.Collection("s"), 4)
	for name, want := range map[*Changes][]int{one: {1, 4}, db: {1, 2, 4}, all: {1, 2, 3, 4}} {
		rs := events(t, name, len(want))
		for i, r := range rs {
			if key(r) != want[i] {
				t.Errorf("%s: event %d is about %d, want %d", name.scope(), i, key(r), want[i])
			}
		}
		noChange(t, name)
	}
}

func TestExpandedEventsCarryTheUUIDAndWhatIsNotADocument(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	db := d.DB(t)
	coll := db.Collection("s")
	c := watchOpen(t, d, db.Name(), "", ChangesConfig{Expanded: true})
	if err := db.CreateCollection(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	insertDoc(t, coll, 1)
	run := func(cmd bson.D) {
		t.Helper()
		if err := coll.Database().Client().Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "s"}, {Key: "validationLevel", Value: "off"}}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := coll.Indexes().DropOne(t.Context(), "a_1"); err != nil {
		t.Fatal(err)
	}
	run(bson.D{{Key: "renameCollection", Value: db.Name() + ".s"}, {Key: "to", Value: db.Name() + ".z"}})
	rs := events(t, c, 6)
	sameText(t, ops(rs), "create s", "createIndexes s", "insert s", "modify s", "dropIndexes s", "rename s")
	if err := db.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if len(r.Change.UUID) != 32 || r.Change.UUID != rs[0].Change.UUID {
			t.Errorf("%s: UUID %q", r.Change.Op, r.Change.UUID)
		}
		if !r.Change.OnDocument() && r.Change.Description == nil {
			t.Errorf("%s: no description", r.Change.Op)
		}
	}
	if to := rs[5].Change.To; to.String() != db.Name()+".z" {
		t.Errorf("renamed to %s", to)
	}
	sameText(t, ops(events(t, c, 3)), "drop z", "dropDatabase", "invalidate")
}

// Trap 3.31, and 3.16: what a transaction did comes whole, also behind a restart in its middle.
func TestATransactionComesWholeFromAnyOfItsTokens(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	insertDoc(t, coll, 0)
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	s, err := coll.Database().Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(context.WithoutCancel(t.Context()))
	_, err = s.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		for i := 1; i <= 4; i++ {
			if _, err := coll.InsertOne(ctx, doc(i)); err != nil {
				return nil, err
			}
		}
		return coll.UpdateOne(ctx, doc(1), bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	insertDoc(t, coll, 5)
	rs := events(t, c, 6)
	for i, r := range rs[:5] {
		if r.Change.Txn == "" || r.Change.Txn != rs[0].Change.Txn || r.Change.Time != rs[0].Change.Time {
			t.Errorf("operation %d: transaction %q at %v", i, r.Change.Txn, r.Change.Time)
		}
		if i > 0 && r.Position.Compare(rs[i-1].Position) <= 0 {
			t.Errorf("operation %d: its position is not behind that of the one before", i)
		}
		rest := ended(t, watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(r.Position), UntilEnd: true}))
		if !slices.EqualFunc(rest, rs[i+1:], same) {
			t.Errorf("behind operation %d: got %d events, want %d", i, len(rest), len(rs)-i-1)
		}
	}
	if rs[5].Change.Txn != "" {
		t.Errorf("a plain write is of transaction %s", rs[5].Change.Txn)
	}
}

func same(a, b record.Record) bool { return a.Position == b.Position && string(a.Raw) == string(b.Raw) }

// Trap 3.17, first half, and 3.30: the position moves while others are written, and while the filter rejects everything.
func TestThePositionMovesWhileNothingIsDelivered(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	db := d.DB(t)
	insertDoc(t, db.Collection("quiet"), 0)
	reject := []bson.D{{{Key: "$match", Value: bson.D{{Key: "fullDocument.wanted", Value: true}}}}}
	for name, cfg := range map[string]struct {
		coll string
		cfg  ChangesConfig
	}{
		"an idle collection":             {"quiet", ChangesConfig{Progress: time.Millisecond}},
		"a filter that rejects them all": {"busy", ChangesConfig{Progress: time.Millisecond, Pipeline: reject}},
	} {
		c := watchOpen(t, d, db.Name(), cfg.coll, cfg.cfg)
		last := progressed(t, c)
		for i := range 3 {
			insertDoc(t, db.Collection("busy"), name+string(rune('a'+i)))
			next := progressed(t, c)
			if next.Position.Compare(last.Position) <= 0 || next.Raw != nil || next.Change != nil {
				t.Fatalf("%s: from %s to %s", name, last.Position, next.Position)
			}
			last = next
		}
		_ = c.Close()
		insertDoc(t, db.Collection("busy"), name, bson.E{Key: "wanted", Value: true})
		insertDoc(t, db.Collection("quiet"), name)
		rs := ended(t, watchUnopened(t, d, db.Name(), cfg.coll, ChangesConfig{Start: after(last.Position), Pipeline: cfg.cfg.Pipeline, UntilEnd: true}))
		if len(rs) != 1 {
			t.Fatalf("%s: behind the progress came %d events, want 1", name, len(rs))
		}
	}
}

func TestProgressIsNotSentMoreOftenThanAsked(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	db := d.DB(t)
	c := watchOpen(t, d, db.Name(), "quiet", ChangesConfig{Progress: time.Hour, Await: 10 * time.Millisecond})
	progressed(t, c) // where it began
	insertDoc(t, db.Collection("busy"), 1)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if r, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v %+v", err, r)
	}
}

// Trap 3.20 and its twist: the server's token behind an invalidate is that event's own, and saving it must be safe.
func TestAnInvalidateIsDeliveredAndTheStreamGoesOnBehindIt(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	insertDoc(t, coll, 1)
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{Progress: time.Millisecond})
	var saved record.Position
	for round := range 2 {
		if err := coll.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		rs := events(t, c, 2)
		sameText(t, ops(rs), "drop s", "invalidate")
		saved = rs[1].Position
		// What was saved behind the invalidate opens, for a reader that knows nothing of it.
		again := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(saved), Progress: time.Millisecond})
		insertDoc(t, coll, 10+round)
		for _, s := range []*Changes{c, again} {
			if rs := events(t, s, 1); key(rs[0]) != 10+round {
				t.Fatalf("round %d: got %s of %d", round, rs[0].Change.Op, key(rs[0]))
			}
		}
		_ = again.Close()
	}
	stop := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{OnInvalidate: StopOnInvalidate})
	if err := coll.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	sameText(t, ops(events(t, stop, 2)), "drop s", "invalidate")
	for range 2 {
		_, err := tryNext(t, stop)
		var inv *InvalidatedError
		if !errors.As(err, &inv) || inv.Position.IsZero() {
			t.Fatalf("got %v", err)
		}
	}
}

// Trap 3.21: an event that no server can send ends the stream with the position before it, and nothing
// before it is lost.
func TestAnEventThatIsTooLargeEndsTheStreamBehindTheOthers(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	double := []bson.D{{{Key: "$addFields", Value: bson.D{{Key: "again", Value: "$fullDocument"}}}}}
	start := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	for i := range 5 {
		insertDoc(t, coll, i)
	}
	insertDoc(t, coll, 5, bson.E{Key: "large", Value: make([]byte, 9<<20)})
	insertDoc(t, coll, 6)
	c := watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(start.Start()), blow: double})
	rs := events(t, c, 5)
	for range 2 {
		_, err := tryNext(t, c)
		var large *OversizedError
		if !errors.As(err, &large) || large.After != rs[4].Position || !large.HistoryLost() {
			t.Fatalf("got %v", err)
		}
	}
	// Without what made it large it fits.
	if rs := events(t, start, 7); len(rs[5].Change.Document) < 9<<20 {
		t.Fatal("the document is not whole")
	}
}

// The largest legal document comes through, and one that has a large _id does not: it is in the event three times.
func TestTheLargestDocumentFitsUnlessItIsItsOwnKey(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	empty, err := bson.Marshal(doc(1, bson.E{Key: "x", Value: []byte{}}))
	if err != nil {
		t.Fatal(err)
	}
	insertDoc(t, coll, 1, bson.E{Key: "x", Value: make([]byte, record.MaxDocumentSize-len(empty))})
	if rs := events(t, c, 1); len(rs[0].Change.Document) != record.MaxDocumentSize {
		t.Fatalf("%d bytes came", len(rs[0].Change.Document))
	}
	insertDoc(t, coll, strings.Repeat("k", 6<<20))
	if _, err := tryNext(t, c); !errors.As(err, new(*OversizedError)) {
		t.Fatalf("got %v", err)
	}
}

func TestWhatCannotBeWatchedIsSaidSo(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	db := d.DB(t)
	_, err := tryNext(t, watchUnopened(t, d, db.Name(), "s", ChangesConfig{}))
	if !errors.As(err, new(*NotReplicaSetError)) || !strings.Contains(err.Error(), "--replSet") {
		t.Errorf("on a standalone server: %v", err)
	}
	d = mongotest.ReplicaSet(t)
	db = d.DB(t)
	if err := db.CreateView(t.Context(), "v", "s", mongo.Pipeline{}); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateCollection(t.Context(), "ts", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v", "ts"} {
		if _, err := tryNext(t, watchUnopened(t, d, db.Name(), name, ChangesConfig{})); !errors.As(err, new(*NotWatchableError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := []bson.D{{{Key: "$match", Value: bson.D{{Key: "$nonsense", Value: 1}}}}}
	if _, err := tryNext(t, watchUnopened(t, d, db.Name(), "s", ChangesConfig{Pipeline: bad})); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("a bad pipeline: %v", err)
	}
}

func TestATokenThatTheServerDoesNotKnowEndsTheStream(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	insertDoc(t, coll, 1)
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{Start: record.Start{Where: record.Earliest}})
	at := events(t, c, 1)[0].Position
	token, _ := record.TokenOf(at)
	data := token.Lookup("_data").StringValue()
	insertDoc(t, coll, 3)                   // the server knows when it meets a later event
	last := strings.LastIndex(data, "2B02") // the _id, 1
	other := record.Position{TS: at.TS, ID: record.IDOf(rawString(t, data[:last]+"2B04"+data[last+4:]))}
	_, err := tryNext(t, watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(other)}))
	var fatal *FatalTokenError
	if !errors.As(err, &fatal) || fatal.Position != other || !fatal.HistoryLost() {
		t.Errorf("a token of an event that did not happen: %v", err)
	}
	cut := record.Position{TS: at.TS, ID: record.IDOf(rawString(t, data[:30]))}
	if _, err := tryNext(t, watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(cut)})); err == nil {
		t.Error("a token that was cut was taken")
	}
}

func rawString(t testing.TB, s string) bson.RawValue {
	t.Helper()
	typ, b, err := bson.MarshalValue(s)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: typ, Value: b}
}

func TestASecondaryCanBeReadAndTheStreamStaysOnIt(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	var at string
	c, err := NewChanges(d.Options().SetReadPreference(readpref.Secondary()), coll.Database().Name(), "s",
		ChangesConfig{Await: 10 * time.Millisecond, Hooks: Hooks{OnOpen: func(addr string) { at = addr }}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // several getMores: they find their cursor
		insertDoc(t, coll, i)
		if rs := events(t, c, 1); key(rs[0]) != i {
			t.Fatalf("got %d, want %d", key(rs[0]), i)
		}
	}
	_ = c.Close()
	var hello struct{ Primary string }
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	if at == "" || at == hello.Primary {
		t.Errorf("it read from %q, and the primary is %s", at, hello.Primary)
	}
}

func TestTheEndIsWhatWasWrittenBeforeTheOpening(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	first := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	for i := range 1000 {
		insertDoc(t, coll, i)
	}
	for range 3 {
		rs := ended(t, watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(first.Start()), UntilEnd: true, BatchSize: 7}))
		if len(rs) != 1000 {
			t.Fatalf("got %d", len(rs))
		}
	}
	c := watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{UntilEnd: true})
	if r, err := tryNext(t, c); !errors.Is(err, io.EOF) {
		t.Fatalf("latest: %v %v", r, err)
	}
}
