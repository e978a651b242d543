package replication

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// naiveEnv makes the test binary the naive program.
const naiveEnv = "CAPSTAN_TEST_NAIVE"

// standInEnv makes the test binary a replicator with the flags of `capstan replicate` that CapstanProgram uses.
const standInEnv = "CAPSTAN_TEST_STAND_IN"

func TestMain(m *testing.M) {
	if os.Getenv(standInEnv) != "" {
		os.Exit(standIn(os.Args[1:]))
	}
	if os.Getenv(naiveEnv) != "" {
		if err := RunNaive(context.Background(), os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitConnect) // a supervisor starts it again
		}
		os.Exit(0)
	}
	mongotest.Main(m)
}
