package verify_test

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// peak watches what the process's heap holds, after a collection, until stop is called.
func peak() (stop func() uint64) {
	var highest atomic.Uint64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			highest.Store(max(highest.Load(), m.HeapInuse))
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() uint64 { close(end); <-ended; return highest.Load() }
}

// TestMemoryDoesNotGrowWithTheSizeOfDocumentsOrDifferences is not parallel: it looks at the heap of the whole process. What a
// comparison of ten times as much holds is compared with what the small one holds.
func TestMemoryDoesNotGrowWithTheSizeOfDocumentsOrDifferences(t *testing.T) {
	held := func(documents, size int, missing bool) uint64 {
		s := sides{from: mongotest.Standalone(t), to: mongotest.Standalone(t)}
		s.source, s.target = s.from.DB(t), s.to.DB(t)
		pad := bytes.Repeat([]byte("x"), size)
		// A few at a time: the heap is not to remember the documents of the test.
		for at := 0; at < documents; at += max(4<<20/size, 1) {
			var docs []any
			for i := at; i < min(at+max(4<<20/size, 1), documents); i++ {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
			}
			insert(t, "c", docs, s.source)
			if !missing {
				insert(t, "c", docs, s.target)
			}
		}
		cfg := s.config()
		stop := peak()
		rep := s.run(t, cfg)
		n := rep.Namespaces[0]
		if int(n.Equal+n.Missing) != documents {
			t.Errorf("got %+v", n)
		}
		return stop()
	}
	small := held(10_000, 100, false)
	for name, got := range map[string]uint64{
		"ten times as many documents": held(100_000, 100, false),
		"all of them missing":         held(110_000, 100, true),
		"documents of 10 MB":          held(6, 10<<20, false),
	} {
		t.Logf("%s: %d MB, against %d MB", name, got>>20, small>>20)
		if limit := 3*small + 64<<20; got > limit {
			t.Errorf("%s: the heap held %d MB, more than %d MB", name, got>>20, limit>>20)
		}
	}
}
