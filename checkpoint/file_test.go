package checkpoint_test

import (
	"path/filepath"
	"testing"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/checkpoint/checkpointtest"
)

func TestFileKeepsEveryPromiseOfAStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, factory(func(tb checkpointtest.TB) func() checkpointtest.Store {
		path := filepath.Join(tb.TempDir(), "checkpoints.json")
		return func() checkpointtest.Store {
			f, err := checkpoint.NewFile(path, checkpoint.FileConfig{})
			if err != nil {
				tb.Fatalf("NewFile: %v", err)
			}
			return f
		}
	}))
}
