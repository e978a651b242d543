package e2e

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// A tailable cursor with read concern majority sleeps through the commit of a lone message and delivers
// it at the end of its await. Ours must not: a lone message comes about as fast as a majority write.
func TestALoneMessageIsDeliveredWhenItIsCommitted(t *testing.T) {
	b := newBench(t, mongotest.ReplicaSet(t), 16<<20)
	count := sized(12, 60)
	pause := 500 * time.Millisecond // 2 messages a second
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	took := map[string]*latency.Histogram{"majority": latency.NewHistogram(), "local": latency.NewHistogram()}
	ended := make(chan error, len(took))
	for name, visibility := range map[string]tailer.Visibility{"majority": tailer.Majority, "local": tailer.Local} {
		s := b.tail(tailer.Config{Start: record.Start{Where: record.Earliest}, Visibility: visibility})
		done := counter(count)
		go func() {
			ended <- b.follow(ctx, s, name, func(r record.Record) bool {
				took[name].Add(time.Duration(time.Now().UnixMicro()-r.Time) * time.Microsecond)
				return done(r)
			})
		}()
	}
	// The control: what one majority write takes on this machine at this moment.
	control := latency.NewHistogram()
	writes := b.db.Collection("control", options.Collection().SetWriteConcern(writeconcern.Majority()))
	p := b.sender("p", nil)
	for range count {
		time.Sleep(pause)
		if err := p.send(ctx, "lone"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause / 5) // the control must not wake the tail
		start := time.Now()
		if _, err := writes.InsertOne(ctx, bson.D{}); err != nil {
			t.Fatal(err)
		}
		control.Add(time.Since(start))
	}
	for range took {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if err := p.finish(); err != nil {
		t.Fatal(err)
	}
	b.judge(history.Rules{Readers: map[string]history.ReaderRules{"majority": {}, "local": {}}})
	majority, local, write := took["majority"].Quantile(50), took["local"].Quantile(50), control.Quantile(50)
	t.Logf("p50 of %d lone messages: majority %s, local %s; a majority write %s", count, majority, local, write)
	// About one write to make it and one read to see it committed; an await would be 50 times as long.
	if majority > 8*write {
		t.Errorf("majority visibility takes %s, and a majority write %s", majority, write)
	}
	if full() && (majority > 50*time.Millisecond || local > 10*time.Millisecond) {
		t.Errorf("p50 majority %s, want less than 50 ms; local %s, want less than 10 ms", majority, local)
	}
}
