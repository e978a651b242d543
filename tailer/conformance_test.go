package tailer

import (
	"sync"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/tailer/sourcetest"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

type harness struct {
	t    testing.TB
	d    *mongotest.Deployment
	coll *mongo.Collection
	mu   sync.Mutex
	srcs map[string]*writer
}

func (h *harness) Open(_ sourcetest.T, o sourcetest.Options) sourcetest.Source {
	return open(h.t, h.d, h.coll, Config{Start: o.Start, UntilEnd: o.UntilEnd, Subject: o.Subject})
}

func (h *harness) Send(t sourcetest.T, src, subject string, n int) {
	h.mu.Lock()
	w := h.srcs[src]
	if w == nil {
		w = &writer{coll: h.coll, src: src, pad: 50}
		h.srcs[src] = w
	}
	h.mu.Unlock()
	w.sendSubject(h.t, n, subject)
}

func (h *harness) Overrun(t sourcetest.T, src string) int {
	h.Send(t, src, "", 3000)
	return 3000
}

// The suite that the in-memory source passes too.
func TestTheStreamConforms(t *testing.T) {
	for name, get := range map[string]func(testing.TB) *mongotest.Deployment{"standalone": mongotest.Standalone, "replica set": mongotest.ReplicaSet} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Features{Overwrites: true, Subjects: true}, func(t testing.TB) sourcetest.Harness {
				d := get(t)
				coll := d.DB(t).Collection("s")
				makeStream(t, coll, 256<<10, 0)
				return &harness{t: t, d: d, coll: coll, srcs: map[string]*writer{}}
			})
		})
	}
}

type changesHarness struct{ harness }

func (h *changesHarness) Open(_ sourcetest.T, o sourcetest.Options) sourcetest.Source {
	return watchOpen(h.t, h.d, h.coll.Database().Name(), h.coll.Name(), ChangesConfig{Start: o.Start, UntilEnd: o.UntilEnd})
}

// The same suite, on a collection that is not capped.
func TestChangesConform(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, sourcetest.Features{}, func(t testing.TB) sourcetest.Harness {
		d := mongotest.ReplicaSet(t)
		return &changesHarness{harness{t: t, d: d, coll: d.DB(t).Collection("s"), srcs: map[string]*writer{}}}
	})
}
