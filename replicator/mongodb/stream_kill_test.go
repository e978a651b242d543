package mongodb_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

// streamChildEnv makes this test binary a process that runs a route; it holds a streamChild.
const streamChildEnv = "CAPSTAN_TEST_STREAM_ROUTE"

type streamChild struct {
	From, To, In, Out, Name string
	Size, Max               int64
	SaveEvery               time.Duration
}

// TestStreamRouteChild is no test: it is the process that others kill.
func TestStreamRouteChild(t *testing.T) {
	text := os.Getenv(streamChildEnv)
	if text == "" {
		t.Skip("it is run by other tests")
	}
	var c streamChild
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	in, err := record.ParseNamespace(c.In)
	if err != nil {
		t.Fatal(err)
	}
	out, err := record.ParseNamespace(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	link, end, err := mongodb.OpenStreamRoute(options.Client().ApplyURI(c.From), options.Client().ApplyURI(c.To), in, out,
		mongodb.StreamRouteConfig{Route: c.Name, Size: c.Size, Max: c.Max, Link: replicator.StreamConfig{SaveEvery: c.SaveEvery, Logger: zerolog.New(os.Stderr)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(link.Run(t.Context()), end(t.Context()))
}

// child starts a process that runs the route.
func (e *streamEnds) child(c streamChild) *exec.Cmd {
	e.t.Helper()
	c.From, c.To, c.In, c.Out, c.Name = e.from.URI, e.to.URI, e.nsIn.String(), e.nsOut.String(), e.name
	text, err := json.Marshal(c)
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(e.t.Context()), os.Args[0], "-test.run=^TestStreamRouteChild$", "-test.v")
	cmd.Env = append(os.Environ(), streamChildEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if testing.Verbose() {
		cmd.Stdout = os.Stderr
	} else {
		cmd.Stderr = nil
	}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { killStream(cmd) })
	return cmd
}

func killStream(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
}

// seededStream returns a generator whose seed is printed; CAPSTAN_STREAM_SEED repeats a run.
func seededStream(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CAPSTAN_STREAM_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (CAPSTAN_STREAM_SEED=%d repeats it)", seed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// I1, I2, I3, I4, I7: whenever the process is killed, every message of the source is stored once and in the order of its src, also where
// the destination evicts what was written since the checkpoint.
func TestKillingAStreamRouteLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]streamChild{
		"a destination that holds everything":         {SaveEvery: time.Second},
		"one that holds a small part":                 {Max: 300, SaveEvery: time.Minute},
		"one that holds a small part by its size":     {Size: 40_000, SaveEvery: time.Minute},
		"one that holds a single message at any time": {Max: 1, SaveEvery: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := seededStream(t)
			d := mongotest.ReplicaSet(t)
			e := newStreamEnds(t, d, d, stream.Config{})
			o := observeStream(t, e.out, "out")
			n, kills := 6000, 6
			if c.Max == 1 {
				n = 150 // a checkpoint each
			}
			srcs := make([]string, 9)
			for i := range srcs {
				srcs[i] = fmt.Sprintf("p%d/x", i)
			}
			for k := range kills {
				e.bursts(rng, n/kills, srcs)
				cmd := e.child(c)
				o.messages(o.n + rng.IntN(n/kills))
				killStream(cmd)
				t.Logf("kill %d: the destination got %d messages", k, o.n)
			}
			cmd := e.child(c)
			o.messages(n / kills * kills)
			e.send(1, "last/1")
			o.messages(n/kills*kills + 1)
			killStream(cmd)
			o.whole()
		})
	}
}

// bursts writes n messages: long runs of one src after another, so that a src is silent while the others fill the destination.
func (e *streamEnds) bursts(rng *rand.Rand, n int, srcs []string) {
	e.t.Helper()
	var docs []bson.D
	for len(docs) < n {
		src := srcs[rng.IntN(len(srcs))]
		for range min(1+rng.IntN(400), n-len(docs)) {
			docs = append(docs, e.message(src, ""))
		}
	}
	e.insert(docs)
}

// I1: what was evicted is not written again, also where the checkpoint is far behind, or gone.
func TestAnEvictedMessageIsNotReplicatedAgain(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	e := newStreamEnds(t, d, d, stream.Config{})
	o := observeStream(t, e.out, "out")
	cfg := mongodb.StreamRouteConfig{Max: 10}
	e.send(500, "a/1")
	r := runStream(t, e.route(cfg))
	r.applied(500)
	r.stop()
	cps := e.out.Client().Database("capstan").Collection(mongodb.StreamCheckpoints)
	if _, err := cps.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: e.name}}); err != nil {
		t.Fatal(err)
	}
	e.send(100, "a/1")
	cfg.Link.Existing = replicator.MergeExisting
	r = runStream(t, e.route(cfg))
	r.live()
	r.until("all is scanned", func(s replicator.Status) bool { return s.Totals.Scanned == 600 })
	if s := r.link.Status(); s.Totals.Applied != 100 || s.Totals.Skipped != 500 {
		t.Errorf("applied %d, skipped %d; want 100 and 500", s.Totals.Applied, s.Totals.Skipped)
	}
	r.stop()
	o.messages(600)
	o.whole()
	if got := streamAll(t, e.out, "out"); len(got) != 10 || !strings.Contains(got[9].String(), `"a/1 600"`) {
		t.Errorf("the destination has %v", got)
	}
}
