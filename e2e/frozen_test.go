package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// silence measures the longest time between two events.
type silence struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

func (s *silence) event() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() {
		s.longest = max(s.longest, now.Sub(s.last))
	}
	s.last = now
}

func (s *silence) get() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

// reset forgets what was before, and starts at now.
func (s *silence) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.longest = time.Now(), 0
}

// prober finds out when the set itself can be written to, with none of capstan's code: it asks every
// member over a connection of its own, with short deadlines, until one takes a majority write.
func prober(ctx context.Context, t *testing.T, c *localcluster.Cluster, writable *silence) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for _, m := range c.Members() {
		uri, err := c.MemberURI(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		client, err := mongo.Connect(options.Client().ApplyURI(uri).SetRetryWrites(false).SetWriteConcern(writeconcern.Majority()))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				_ = client.Disconnect(ctx) // it may be frozen
			}()
			for ctx.Err() == nil {
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				_, err := client.Database("prober").Collection("writes").InsertOne(attempt, bson.D{{Key: "by", Value: m.Name}})
				cancel()
				if err == nil {
					writable.event()
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return &wg
}

// With the primary frozen its connections stay open and nothing answers. I8: producer and tail notice
// by themselves, and go on within the time that the set itself needs, and a second.
func TestAFrozenPrimaryStopsNobodyLongerThanTheSetItself(t *testing.T) {
	b := newBench(t, mongotest.Own(t, localcluster.Config{Members: 3}), 64<<20)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	probing, stopProber := context.WithCancel(ctx)
	var writable, acknowledged, delivered silence
	probers := prober(probing, t, b.d.Cluster, &writable)
	defer probers.Wait()
	defer stopProber()
	late := overran(t)

	p := b.sender("p", func(producer.Result) { acknowledged.event() })
	var acks sync.WaitGroup
	tailing, stopTail := context.WithCancel(ctx)
	defer stopTail()
	s := b.tail(tailer.Config{Start: record.Start{Where: record.Earliest}})
	total := make(chan int64, 1)
	acks.Go(func() {
		var n, want int64 = 0, -1
		err := b.follow(tailing, s, "tail", func(record.Record) bool {
			delivered.event()
			n++
			select {
			case want = <-total:
			default:
			}
			return n == want
		})
		if err != nil {
			t.Errorf("tail: %v", err)
		}
	})
	send := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if err := p.send(ctx, "x"); err != nil {
				t.Fatalf("send: %v", err)
			}
		}
	}
	send(2 * time.Second)
	// From here on the silences count.
	writable.reset()
	acknowledged.reset()
	delivered.reset()
	frozen, err := b.d.Cluster.Freeze(ctx, localcluster.RolePrimary)
	if err != nil {
		t.Fatal(err)
	}
	send(15 * time.Second)
	set, acked, got := writable.get(), acknowledged.get(), delivered.get()
	slack := late()
	t.Logf("%s frozen: the set took no write for %s, the producer had no acknowledgement for %s, the tail no message for %s (timers in this process up to %s late)",
		frozen.Name, set, acked, got, slack)
	if set < 300*time.Millisecond {
		t.Errorf("the set was never out: the test shows nothing")
	}
	if most := set + time.Second + 2*slack; acked > most || got > most {
		t.Errorf("the silences are longer than the set's own and a second")
	}
	if _, err := b.d.Cluster.Thaw(ctx, frozen.Name); err != nil {
		t.Fatal(err)
	}
	send(time.Second)
	total <- p.seq + 1
	if err := p.send(ctx, "last"); err != nil {
		t.Fatal(err)
	}
	if err := p.finish(); err != nil {
		t.Errorf("finish: %v", err)
	}
	acks.Wait()
	b.readBack()
	b.judge(history.Rules{Readers: map[string]history.ReaderRules{"tail": {}, "read back": {}}})
}
