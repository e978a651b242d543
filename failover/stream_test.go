package failover

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
)

func TestBatchesAreStoredInOrder(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*mongotest.Deployment{"standalone": mongotest.Standalone(t), "replica set": mongotest.ReplicaSet(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			n := 0
			for _, size := range []int{1, 1, 10, 1000, 3} {
				applied, err := s.w.WriteBatch(t.Context(), messages("a", n+1, size))
				if err != nil || applied != size {
					t.Fatalf("batch of %d: applied %d, %v", size, applied, err)
				}
				n += size
			}
			s.ok("a", int64(n))
		})
	}
}

func TestTheSameBatchTwiceIsStoredOnce(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*mongotest.Deployment{"standalone": mongotest.Standalone(t), "replica set": mongotest.ReplicaSet(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			docs := messages("a", 1, 100)
			for _, part := range [][]bson.Raw{docs[:40], docs[:40], docs, docs[99:]} {
				applied, err := s.w.WriteBatch(t.Context(), part)
				if err != nil || applied != len(part) {
					t.Fatalf("applied %d of %d: %v", applied, len(part), err)
				}
			}
			s.ok("a", 100)
		})
	}
}

func TestOtherContentUnderOurIDIsAnError(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.ReplicaSet(t), Config{})
	docs := messages("a", 1, 5)
	id := docs[3].Lookup("_id")
	if _, err := s.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "src", Value: "b"}, {Key: "seq", Value: int64(4)}}); err != nil {
		t.Fatal(err)
	}
	applied, err := s.w.WriteBatch(t.Context(), docs)
	var rejected *record.RejectedError
	conflict, ok := errors.AsType[*ConflictError](err)
	if applied != 3 || !errors.As(err, &rejected) || rejected.Index != 3 || !errors.Is(err, record.ErrExists) || rejected.ID != record.IDOf(id) ||
		!ok || conflict.ID != rejected.ID || conflict.Namespace != s.coll.Database().Name()+".s" {
		t.Fatalf("applied %d, %v", applied, err)
	}
	if stored := s.stored(); len(stored) != 4 {
		t.Errorf("%d messages are stored", len(stored))
	}
}
