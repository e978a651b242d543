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

func TestMain(m *testing.M) {
	if os.Getenv(naiveEnv) != "" {
		if err := RunNaive(context.Background(), os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitConnect) // a supervisor starts it again
		}
		os.Exit(0)
	}
	mongotest.Main(m)
}
