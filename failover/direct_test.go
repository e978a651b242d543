package failover

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// writers makes n writers of one layer to collections of their own.
func writers(t *testing.T, n int, edit func(*options.ClientOptions), cfg Config) []*StreamWriter {
	t.Helper()
	d := mongotest.Standalone(t)
	db := d.DB(t)
	o := d.Options()
	edit(o)
	l, err := New(o, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("a connection did not come back: %v", err)
		}
	})
	var ws []*StreamWriter
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		if err := db.CreateCollection(t.Context(), name, options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)); err != nil {
			t.Fatal(err)
		}
		spec, err := db.ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: name}})
		if err != nil {
			t.Fatal(err)
		}
		ws = append(ws, l.Stream(db.Name(), name, StreamConfig{UUID: bson.Binary{Subtype: spec[0].UUID.Subtype, Data: spec[0].UUID.Data}}))
	}
	return ws
}

func TestInsertsShareAConnectionWhereTheyMay(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := 0
	watch := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		mu.Lock()
		defer mu.Unlock()
		if e.CommandName == "insert" {
			seen++
		}
	}}
	for _, c := range []struct {
		name string
		edit func(*options.ClientOptions)
		cfg  Config
		held bool
	}{
		{"by default", func(*options.ClientOptions) {}, Config{}, true},
		{"Plain", func(*options.ClientOptions) {}, Config{Plain: true}, false},
		{"a small pool", func(o *options.ClientOptions) { o.SetMaxPoolSize(3) }, Config{}, false},
		{"compressed", func(o *options.ClientOptions) { o.SetCompressors([]string{"zlib"}) }, Config{}, false},
		{"monitored", func(o *options.ClientOptions) { o.SetMonitor(watch) }, Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := writers(t, 1, c.edit, c.cfg)[0]
			for i := range 5 {
				if n, err := w.WriteBatch(t.Context(), messages("a", i+1, 1)); err != nil || n != 1 {
					t.Fatalf("applied %d, %v", n, err)
				}
			}
			if got := w.srv.held(); got != c.held {
				t.Errorf("a connection is held: %v, want %v", got, c.held)
			}
		})
	}
	if seen != 5 {
		t.Errorf("a monitor saw %d of 5 inserts", seen)
	}
}

// Writers that are given up do not use the pool up: the others go on.
func TestMoreWritersThanThePoolHasConnectionsAllWrite(t *testing.T) {
	t.Parallel()
	for _, size := range []uint64{4, 9, 100} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			ws := writers(t, 25, func(o *options.ClientOptions) { o.SetMaxPoolSize(size) }, Config{})
			held := 0
			for round := range 3 {
				var wg sync.WaitGroup
				for _, w := range ws {
					wg.Go(func() {
						if n, err := w.WriteBatch(t.Context(), messages("a", 10*round+1, 10)); err != nil || n != 10 {
							t.Errorf("applied %d, %v", n, err)
						}
					})
				}
				wg.Wait()
			}
			for _, w := range ws {
				if w.srv.held() {
					held++
				}
			}
			if held < 1 || held > int(min(maxLines, size/minPool)) {
				t.Errorf("%d writers hold a connection each, of a pool of %d", held, size)
			}
		})
	}
}
