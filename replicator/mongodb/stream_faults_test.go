package mongodb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

// strike hurts the primary in one of the ways that end with an election, and returns what heals it.
func strike(ctx context.Context, c *localcluster.Cluster, how int) (string, func() error, error) {
	switch how {
	case 0:
		m, err := c.StepDown(ctx, localcluster.RolePrimary)
		return "stepped down " + m.Name, func() error { return nil }, err
	case 1:
		m, err := c.Kill(ctx, localcluster.RolePrimary)
		return "killed " + m.Name, func() error { _, err := c.Start(ctx, m.Name); return err }, err
	}
	m, err := c.Freeze(ctx, localcluster.RolePrimary)
	return "froze " + m.Name, func() error { _, err := c.Thaw(ctx, m.Name); return err }, err
}

// I1, I3, I4, I7: elections of the source and the destination (one set here, so both at once) together with kill -9 of the process, at
// random moments, with a destination that holds a small part.
func TestElectionsAndKillsTogetherLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	rng := seededStream(t)
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	e := newStreamEnds(t, d, d, stream.Config{})
	o := observeStream(t, e.out, "out")
	c := streamChild{Max: 2000, SaveEvery: time.Minute}
	const rounds, each = 6, 1500
	for round := range rounds {
		e.patientBursts(rng, each)
		cmd := e.child(c)
		o.messages(o.n + rng.IntN(each))
		what, heal, err := strike(t.Context(), d.Cluster, round%3)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: %s at %d messages", round, what, o.n)
		if rng.IntN(2) == 0 { // else the process lives through the election
			killStream(cmd)
			cmd = e.child(c)
		}
		o.messages((round+1)*each - rng.IntN(100))
		killStream(cmd)
		if err := heal(); err != nil {
			t.Fatal(err)
		}
		if err := d.Cluster.AwaitHealthy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cmd := e.child(c)
	o.messages(rounds * each)
	e.patientBursts(rng, 1)
	o.messages(rounds*each + 1)
	killStream(cmd)
	o.whole()
}

// patientBursts is bursts through whatever the servers go through.
func (e *streamEnds) patientBursts(rng *rand.Rand, n int) {
	e.t.Helper()
	srcs := make([]string, 5)
	for i := range srcs {
		srcs[i] = fmt.Sprintf("p%d/x", i)
	}
	for end := time.Now().Add(streamPatience); ; time.Sleep(50 * time.Millisecond) {
		// A write that is retried by the driver has one outcome; only finding a primary needs patience.
		ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
		err := e.in.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			e.t.Fatalf("no primary: %v", err)
		}
	}
	e.bursts(rng, n, srcs)
}

// A side that is away is waited for, and the status says so; a stop then ends Run well.
func TestAStreamRouteWaitsForServersThatAreAway(t *testing.T) {
	t.Parallel()
	nowhere := options.Client().ApplyURI("mongodb://127.0.0.1:1/?replicaSet=none&serverSelectionTimeoutMS=300")
	link, end, err := mongodb.OpenStreamRoute(nowhere, nowhere, record.Namespace{DB: "a", Coll: "a"}, record.Namespace{DB: "b", Coll: "b"}, mongodb.StreamRouteConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := runStream(t, link)
	t.Cleanup(func() {
		r.end()
		_ = r.wait()
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
	})
	r.until("the trouble is said", func(s replicator.Status) bool { return strings.Contains(s.LastError, "look at the source") })
	if s := link.Status(); s.Phase != replicator.PhaseStarting {
		t.Errorf("phase %s", s.Phase)
	}
	r.stop()
}

// Messages that are larger than a quarter of the destination pass, each of them alone.
func TestLargeMessagesAreReplicated(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{Size: 20_000_000})
	for range 2 {
		doc := e.message("a/1", "")
		doc[len(doc)-1].Value = make([]byte, 6<<20)
		e.insert([]bson.D{doc})
		e.send(3, "a/1")
	}
	r := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Until: replicator.UntilLive}}))
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	got, want := streamAll(t, e.out, "out"), streamAll(t, e.in, "in")
	if len(got) != 8 || len(want) != 8 {
		t.Fatalf("%d messages of %d", len(got), len(want))
	}
	for i := range got {
		if withoutField(t, got[i], "ts") != withoutField(t, want[i], "ts") {
			t.Errorf("message %d differs", i)
		}
	}
}
