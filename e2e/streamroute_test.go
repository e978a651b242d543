package e2e

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// I1, I4: a stream is replicated to another replica set while the primaries of both are killed: what the producer was told is
// stored is delivered by a tail of the destination, once, in order.
func TestAStreamRouteLosesAndRepeatsNothingWhenBothPrimariesAreKilled(t *testing.T) {
	t.Parallel()
	const messages, window = 20_000, 1500
	rng := seed(t)
	b := newBench(t, mongotest.Own(t, localcluster.Config{Members: 3}), 50_000_000)
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	out := &bench{t: t, d: d, db: d.DB(t), coll: "copy"}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()

	link, closeRoute, err := mongodb.OpenStreamRoute(b.d.Options(), d.Options(), record.Namespace{DB: b.db.Name(), Coll: b.coll},
		record.Namespace{DB: out.db.Name(), Coll: out.coll}, mongodb.StreamRouteConfig{Route: "e2e"})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	rctx, stopRoute := context.WithCancel(ctx)
	all.Go(func() {
		if err := link.Run(rctx); err != nil {
			t.Errorf("the route: %v; status %+v", err, link.Status())
		}
		if err := closeRoute(ctx); err != nil {
			t.Errorf("close the route: %v", err)
		}
	})
	var delivered atomic.Int64
	tail := out.tail(tailer.Config{Start: record.Start{Where: record.Earliest}})
	all.Go(func() {
		defer stopRoute()
		reader := b.rec.Reader("destination")
		for delivered.Load() < messages {
			r, err := tail.Next(ctx)
			if err != nil {
				t.Errorf("the tail of the destination after %d messages: %v; route %+v", delivered.Load(), err, link.Status())
				return
			}
			if note(reader, r) {
				delivered.Add(1)
			}
		}
	})
	for _, c := range []*localcluster.Cluster{b.d.Cluster, d.Cluster} {
		at := moments(rng, 2, messages)
		all.Go(func() { killPrimaryAt(ctx, t, c, &delivered, at) })
	}

	s := b.sender("app", nil)
	pad := strings.Repeat("x", 100)
	for n := range messages {
		if err := s.send(ctx, pad); err != nil {
			t.Errorf("send: %v", err)
			break
		}
		// The producer stays near the reader, so that the kills find it writing and the route copying.
		if !reach(ctx, &delivered, int64(n-window)) {
			break
		}
	}
	if err := s.finish(); err != nil {
		t.Errorf("the producer: %v", err)
	}
	all.Wait()
	t.Logf("route: %+v", link.Status())
	if lost, gaps := link.Lost(); lost != 0 || gaps != 0 {
		t.Errorf("the route says that %d messages were lost, in %d gaps", lost, gaps)
	}
	out.readBack()
	for _, e := range out.rec.Events() {
		b.rec.Add(e)
	}
	b.judge(history.Rules{Readers: map[string]history.ReaderRules{"destination": {}, "read back": {}}})
}

// killPrimaryAt kills the primary whenever progress has come to one of the moments, and starts it again.
func killPrimaryAt(ctx context.Context, t *testing.T, c *localcluster.Cluster, progress *atomic.Int64, at []int64) {
	for _, n := range at {
		if !reach(ctx, progress, n) {
			return // the others say why
		}
		m, err := c.Kill(ctx, localcluster.RolePrimary)
		if err != nil {
			t.Errorf("kill the primary: %v", err)
			return
		}
		t.Logf("killed the primary %s at %d messages", m.Name, progress.Load())
		time.Sleep(2 * time.Second)
		if _, err := c.Start(ctx, m.Name); err != nil {
			t.Errorf("start %s again: %v", m.Name, err)
			return
		}
	}
}
