package checkpoint_test

import (
	"errors"
	"testing"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/checkpoint/checkpointtest"
)

func factory(open func(t checkpointtest.TB) func() checkpointtest.Store) checkpointtest.Factory {
	return checkpointtest.Factory{
		New:      open,
		NotFound: checkpoint.ErrNotFound,
		OtherStream: func(err error) bool {
			_, ok := errors.AsType[*checkpoint.OtherStreamError](err)
			return ok
		},
	}
}

func TestMemoryKeepsEveryPromiseOfAStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, factory(func(checkpointtest.TB) func() checkpointtest.Store {
		m := checkpoint.NewMemory()
		return func() checkpointtest.Store { return m }
	}))
}
