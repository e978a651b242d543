package experiment

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// workerVariable makes this test binary a worker, as `capstan bench worker` is.
const workerVariable = "CAPSTAN_EXPERIMENT_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		mongotest.Main(m)
	}
	if err := RunWorker(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func selfWorker(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"=1")
	return cmd
}
