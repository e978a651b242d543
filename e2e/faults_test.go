package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// stormRate is how many messages a second each producer of a storm sends.
const stormRate = 400

// storm runs the producers named in names and a tail of each visibility through fault, and judges.
func storm(t *testing.T, b *bench, names []string, fault func(ctx context.Context)) history.Verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rules := history.Rules{Readers: map[string]history.ReaderRules{"read back": {}}}
	var senders []*sender
	for _, name := range names {
		senders = append(senders, b.sender(name, nil))
	}
	// A local tail may be shown what an election takes back. The producer then writes it again under the
	// same seq, which that tail has passed: so it, too, gets everything once.
	rules.Readers["majority"] = history.ReaderRules{}
	rules.Readers["local"] = history.ReaderRules{}
	ended := make(chan error, 2)
	for name, visibility := range map[string]tailer.Visibility{"majority": tailer.Majority, "local": tailer.Local} {
		s := b.tail(tailer.Config{Start: record.Start{Where: record.Earliest}, Visibility: visibility})
		left := len(names)
		go func() {
			ended <- b.follow(ctx, s, name, func(r record.Record) bool {
				if data, _ := r.Raw.Lookup(record.FieldData).StringValueOK(); data == "last" {
					left--
				}
				return left == 0
			})
		}()
	}
	over, end := context.WithCancel(ctx)
	sent := make(chan error, len(names))
	for _, s := range senders {
		go func() {
			for n := 0; over.Err() == nil; n++ {
				if err := s.send(ctx, fmt.Sprint("message ", n)); err != nil {
					sent <- err
					return
				}
				time.Sleep(time.Second / stormRate)
			}
			sent <- errors.Join(s.send(ctx, "last"), s.finish())
		}()
	}
	time.Sleep(time.Second)
	fault(ctx)
	time.Sleep(2 * time.Second)
	end()
	for range senders {
		if err := <-sent; err != nil {
			t.Errorf("producer: %v", err)
		}
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("tail: %v", err)
		}
	}
	b.readBack()
	return b.judge(rules)
}

// I1, I4: whatever elections happen, what is acknowledged is there once, and comes in order.
func TestNothingIsLostOrDoubledThroughElections(t *testing.T) {
	b := newBench(t, mongotest.Own(t, localcluster.Config{Members: 3}), 64<<20)
	c := b.d.Cluster
	must := func(_ localcluster.Member, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	storm(t, b, []string{"a", "b"}, func(ctx context.Context) {
		must(c.StepDown(ctx, localcluster.RolePrimary))
		time.Sleep(2 * time.Second)
		killed, err := c.Kill(ctx, localcluster.RolePrimary)
		must(killed, err)
		time.Sleep(4 * time.Second)
		must(c.Start(ctx, killed.Name))
		time.Sleep(2 * time.Second)
		stopped, err := c.Stop(ctx, localcluster.RolePrimary)
		must(stopped, err)
		must(c.Start(ctx, stopped.Name))
		time.Sleep(2 * time.Second)
	})
}

// The same on one server, which is away altogether for a while.
func TestNothingIsLostOrDoubledThroughARestart(t *testing.T) {
	b := newBench(t, mongotest.Own(t, localcluster.Config{Members: 1}), 64<<20)
	storm(t, b, []string{"a", "b"}, func(ctx context.Context) {
		if _, err := b.d.Cluster.Stop(ctx, "m0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := b.d.Cluster.Start(ctx, "m0"); err != nil {
			t.Fatal(err)
		}
	})
}

// I4: with two producers and nothing broken, each producer's order is kept for readers of either
// visibility.
func TestTwoProducersKeepTheirOrdersForEveryReader(t *testing.T) {
	for name, d := range map[string]func(testing.TB) *mongotest.Deployment{"standalone": mongotest.Standalone, "replica_set": mongotest.ReplicaSet} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, d(t), 64<<20)
			v := storm(t, b, []string{"a", "b"}, func(context.Context) {})
			if got := v.Reader("local").Delivered; got != v.Sent {
				t.Errorf("delivered %d of %d", got, v.Sent)
			}
		})
	}
}

// I5: a stream that is dropped and created again is reported, and the new one is read from its birth.
func TestAStreamCreatedAnewIsReportedAndRead(t *testing.T) {
	b := newBench(t, mongotest.ReplicaSet(t), 16<<20)
	ctx := within(t)
	s := b.tail(tailer.Config{Start: record.Start{Where: record.Earliest}})
	first := b.sender("first", nil)
	for range 10 {
		if err := first.send(ctx, "old"); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.finish(); err != nil {
		t.Fatal(err)
	}
	if err := b.follow(ctx, s, "tail", counter(10)); err != nil {
		t.Fatal(err)
	}
	old := b.info
	if err := b.db.Collection(b.coll).Drop(ctx); err != nil {
		t.Fatal(err)
	}
	b.ensure(16 << 20)
	if b.info.Fingerprint() == old.Fingerprint() {
		t.Fatal("the new stream has the old fingerprint")
	}
	second := b.sender("second", nil)
	for range 10 {
		if err := second.send(ctx, "new"); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.finish(); err != nil {
		t.Fatal(err)
	}
	reader, reported := b.rec.Reader("tail"), false
	for left := 10; left > 0; {
		r, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == record.KindGap {
			t.Logf("reported: %s", r.Gap)
			reported = reported || r.Gap.Cause == record.CauseRecreated
		}
		if note(reader, r) {
			left--
		}
	}
	if !reported {
		t.Error("the new stream was read without a word")
	}
	b.judge(history.Rules{Readers: map[string]history.ReaderRules{"tail": {}}})
}
