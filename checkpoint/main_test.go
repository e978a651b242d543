package checkpoint_test

import (
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint/checkpointtest"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// doer repeats the steps of a store, with the given time for each attempt.
func doer(tb checkpointtest.TB, attempt time.Duration) *failover.Layer {
	l, err := failover.New(nil, failover.Config{AttemptTimeout: attempt})
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	return l
}

func TestMain(m *testing.M) { mongotest.Main(m) }
