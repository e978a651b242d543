package tailer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// watchOpen returns an opened change stream that is closed with the test.
func watchOpen(t testing.TB, d *mongotest.Deployment, db, coll string, cfg ChangesConfig) *Changes {
	t.Helper()
	c := watchUnopened(t, d, db, coll, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if err := c.Open(ctx); err != nil {
		t.Fatalf("open: %v", err)
	}
	return c
}

func watchUnopened(t testing.TB, d *mongotest.Deployment, db, coll string, cfg ChangesConfig) *Changes {
	t.Helper()
	c, err := NewChanges(d.Options(), db, coll, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pullNext returns the next record, and checks that positions rise.
func pullNext(t testing.TB, c *Changes) record.Record {
	t.Helper()
	r, err := tryNext(t, c)
	if err != nil {
		t.Fatalf("next: %v", err)
	}
	return r
}

func tryNext(t testing.TB, c *Changes) (record.Record, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	return c.Next(ctx)
}

// events returns the next n changes; records of progress are passed over.
func events(t testing.TB, c *Changes, n int) []record.Record {
	t.Helper()
	var out []record.Record
	last := c.Start()
	for len(out) < n {
		r := pullNext(t, c)
		if r.Position.Compare(last) < 0 {
			t.Fatalf("the position went back: %s after %s", r.Position, last)
		}
		last = r.Position
		if r.Kind == record.KindChange {
			out = append(out, r)
		}
	}
	return out
}

// progress returns the next record of progress; a change fails.
func progressed(t testing.TB, c *Changes) record.Record {
	t.Helper()
	r := pullNext(t, c)
	if r.Kind != record.KindProgress {
		t.Fatalf("got a %s, want progress", r.Kind)
	}
	return r
}

// ended reads to the end of data and returns the changes.
func ended(t testing.TB, c *Changes) []record.Record {
	t.Helper()
	var out []record.Record
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	for r, err := range c.All(ctx) {
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if r.Kind == record.KindChange {
			out = append(out, r)
		}
	}
	return out
}

// noChange checks that nothing but progress comes within a short time.
func noChange(t testing.TB, c *Changes) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for {
		r, err := c.Next(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil || r.Kind != record.KindProgress {
			t.Fatalf("got %v %+v, want nothing", err, r)
		}
	}
}

func after(p record.Position) record.Start { return record.Start{Where: record.After, Position: p} }

func key(r record.Record) int { return int(r.Change.Key.AsInt64()) }

func doc(id any, extra ...bson.E) bson.D { return append(bson.D{{Key: "_id", Value: id}}, extra...) }
