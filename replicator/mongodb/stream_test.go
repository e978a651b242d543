package mongodb_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

// I4: what the source holds and what comes afterwards is at the destination, in natural order, byte for byte but for ts.
func TestAStreamRouteBringsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{Size: 5_000_000, Max: 50_000})
	e.send(2500, "a/1", "b/1", "c/1")
	var phases []replicator.Phase
	r := runStream(t, e.route(mongodb.StreamRouteConfig{Link: replicator.StreamConfig{Hooks: replicator.Hooks{OnPhase: func(p replicator.Phase) { phases = append(phases, p) }}}}))
	r.live()
	e.send(500, "b/1", "d/1")
	r.applied(3000)
	r.until("no lag, and the checkpoint at the end", func(s replicator.Status) bool {
		return s.LagSeconds != nil && *s.LagSeconds == 0 && s.Checkpoint == s.Applied && s.Head.Time == s.Applied.Time
	})
	s := r.link.Status()
	r.stop()

	got, want := streamAll(t, e.out, "out"), streamAll(t, e.in, "in")
	if len(got) != len(want) || len(want) != 3000 {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range got {
		if withoutField(t, got[i], "ts") != withoutField(t, want[i], "ts") {
			t.Fatalf("message %d is %s, want %s", i, got[i], want[i])
		}
		there, here := want[i].Lookup("ts"), got[i].Lookup("ts")
		if here.Type != bson.TypeTimestamp || here.Equal(there) {
			t.Fatalf("message %d: ts is %s, and %s at the source: it is not made anew", i, here, there)
		}
	}
	if s.Source.SetName == "" || s.Copy.Scanned != 3000 || s.Totals.Matched != 3000 || len(s.Notes) != 0 {
		t.Errorf("status %+v", s)
	}
	if len(phases) != 3 || phases[0] != replicator.PhaseCopying || phases[1] != replicator.PhaseCatchingUp || phases[2] != replicator.PhaseLive {
		t.Errorf("phases %v", phases)
	}
	in, err := stream.Lookup(t.Context(), e.in, "in")
	if err != nil {
		t.Fatal(err)
	}
	out, err := stream.Lookup(t.Context(), e.out, "out")
	if err != nil {
		t.Fatal(err)
	}
	if out.Size != in.Size || out.Max != in.Max || !out.Ours {
		t.Errorf("the destination was made as %+v, the source is %+v", out, in)
	}
	if n, err := e.out.Collection("out").CountDocuments(t.Context(), bson.D{{Key: "_id", Value: record.PrimerID}}); err != nil || n != 1 {
		t.Errorf("the destination has %d primers of its own (%v)", n, err)
	}
}
