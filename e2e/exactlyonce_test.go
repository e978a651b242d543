package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// flights is where the real file is, if it is; it is too large for the tree.
const flights = "../../shared/data/flights.ndjson.gz"

// eventFile writes n events to a file in dir and returns its path and lines.
func eventFile(t *testing.T, dir string, n int, rng *rand.Rand) (string, [][]byte) {
	t.Helper()
	lines, from := realEvents(t, n), flights
	if lines == nil {
		from = "generated, as " + flights + " is not there"
		for range n {
			lines = append(lines, fmt.Appendf(nil, `{"delay":%d,"distance":%d,"time":%.4f}`, rng.IntN(400)-30, 50+rng.IntN(4900), rng.Float64()*24))
		}
	}
	t.Logf("%d events: %s", len(lines), from)
	path := filepath.Join(dir, "events.ndjson")
	if err := os.WriteFile(path, append(bytes.Join(lines, []byte("\n")), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, lines
}

// realEvents returns the first n lines of the real file, or nil.
func realEvents(t *testing.T, n int) [][]byte {
	t.Helper()
	f, err := os.Open(flights)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]byte
	for in := bufio.NewScanner(z); len(lines) < n && in.Scan(); {
		lines = append(lines, bytes.Clone(in.Bytes()))
	}
	return lines
}

// exactlyOnce is a file on its way through produce, a stream, consume and a handler.
type exactlyOnce struct {
	t      *testing.T
	d      *mongotest.Deployment
	db     *mongo.Database
	dir    string
	path   string
	lines  [][]byte
	rate   int
	work   []string      // how the consumer works
	events string        // the folder of the handlers' event files
	sent   atomic.Int64  // messages in the stream, as last seen
	stored atomic.Int64  // effects, as last seen
	done   chan struct{} // everything is stored
}

const exactlyOnceStream = "events"

// I2, I3, I7: a file goes through produce and consume with each event handled at least once and its
// effect stored exactly once, whoever is killed with -9 on the way.
func TestAFileIsStoredExactlyOnceWhoeverIsKilled(t *testing.T) {
	rng := seed(t)
	x := newExactlyOnce(t, mongotest.Own(t, localcluster.Config{Members: 3}), sized(3_000, 200_000), rng)
	x.rate = sized(600, 3000)
	if full() {
		x.work = []string{"--workers", "32", "--key", "none"}
	}
	consumers := moments(rng, sized(3, 10), len(x.lines))
	producers := moments(rng, sized(2, 3), len(x.lines))
	primaries := moments(rng, sized(1, 2), len(x.lines))
	ctx, cancel := context.WithTimeout(t.Context(), sized(6*time.Minute, 25*time.Minute))
	defer cancel()
	defer x.counting(ctx)()

	began := time.Now()
	var all sync.WaitGroup
	all.Go(func() { x.produce(ctx, producers) })
	all.Go(func() { x.consume(ctx, consumers) })
	all.Go(func() { x.killPrimaries(ctx, primaries) })
	all.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d events in %s, with kill -9 of %d consumers, %d producers, %d primaries", len(x.lines), time.Since(began).Round(time.Second), len(consumers), len(producers), len(primaries))
	x.judge()
}

// Two consumers with one durable name fence each other: the older one ends and says why, and between
// them everything is handled at least once and stored once.
func TestTwoConsumersOfOneNameFenceEachOther(t *testing.T) {
	x := newExactlyOnce(t, mongotest.ReplicaSet(t), 1_500, seed(t))
	x.rate = 300
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	defer x.counting(ctx)()
	var producing sync.WaitGroup
	producing.Go(func() { x.produce(ctx, nil) })
	defer producing.Wait()
	first := x.consumer()
	if !reach(ctx, &x.stored, 300) {
		t.Fatalf("nothing is handled; the consumer said:\n%s", first.stderr.String())
	}
	second := x.consumer()
	select {
	case <-first.ended:
	case <-ctx.Done():
		t.Fatal("the first consumer goes on beside the second")
	}
	if first.err == nil || !strings.Contains(first.stderr.String(), "another process with the same name") {
		t.Errorf("the first consumer ended with %v and said:\n%s", first.err, first.stderr.String())
	}
	select {
	case <-x.done:
	case <-second.ended:
		t.Fatalf("the second consumer ended by itself and said:\n%s", second.stderr.String())
	case <-ctx.Done():
		t.Fatalf("%d of %d effects are stored", x.stored.Load(), len(x.lines))
	}
	second.stop(t)
	producing.Wait()
	x.judge()
}

func newExactlyOnce(t *testing.T, d *mongotest.Deployment, events int, rng *rand.Rand) *exactlyOnce {
	t.Helper()
	dir := t.TempDir()
	x := &exactlyOnce{t: t, d: d, db: d.DB(t), dir: dir, done: make(chan struct{}), events: filepath.Join(dir, "handled")}
	if err := os.Mkdir(x.events, 0o755); err != nil {
		t.Fatal(err)
	}
	x.path, x.lines = eventFile(t, dir, events, rng)
	return x
}

// counting starts count; the function returned ends it.
func (x *exactlyOnce) counting(ctx context.Context) func() {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { x.count(ctx) })
	return func() { cancel(); wg.Wait() }
}

// moments draws n numbers of events in increasing order at which something is killed, spread over all
// but the last tenth.
func moments(rng *rand.Rand, n, events int) []int64 {
	at := make([]int64, n)
	for i := range at {
		width := events * 9 / 10 / n
		at[i] = int64(i*width + width/10 + rng.IntN(width*8/10))
	}
	return at
}

// count keeps sent and stored up to date, and closes done.
func (x *exactlyOnce) count(ctx context.Context) {
	looks := 0
	for closed := false; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for coll, to := range map[string]*atomic.Int64{exactlyOnceStream: &x.sent, handlerColl: &x.stored} {
			attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
			n, err := x.db.Collection(coll).EstimatedDocumentCount(attempt)
			if looks++; err == nil && looks%100 < 2 {
				// The estimate is a counter that a kill -9 of the server leaves wrong for good.
				n, err = x.db.Collection(coll).CountDocuments(attempt, bson.D{})
			}
			if err == nil {
				to.Store(n)
			} // else a primary is away: the next time
			cancel()
		}
		if !closed && x.stored.Load() >= int64(len(x.lines)) {
			close(x.done)
			closed = true
		}
	}
}

// produce runs the producer until it has sent the whole file, and kills it at the moments.
func (x *exactlyOnce) produce(ctx context.Context, at []int64) {
	args := []string{"produce", x.db.Name() + "." + exactlyOnceStream, x.path, "--durable", "import", "--input", "ndjson",
		"--create", "--size", "200MB", "--rate", strconv.Itoa(x.rate)}
	for _, n := range at {
		p := start(x.t, x.d.URI, nil, nil, args...)
		if !reach(ctx, &x.sent, n) || !p.running() {
			x.t.Errorf("the producer could not be killed at %d messages; it said:\n%s", n, p.stderr.String())
			return
		}
		p.kill()
		x.t.Logf("killed the producer at %d messages", x.sent.Load())
	}
	x.ends(ctx, start(x.t, x.d.URI, nil, nil, args...))
}

// ends waits for the end of p, which must be good.
func (x *exactlyOnce) ends(ctx context.Context, p *process) {
	select {
	case <-p.ended:
		if p.err != nil {
			x.t.Errorf("%v: %v; it said:\n%s", p.cmd.Args[1:], p.err, p.stderr.String())
		}
	case <-ctx.Done():
		x.t.Errorf("%v does not end; it said:\n%s", p.cmd.Args[1:], p.stderr.String())
	}
}

// consumer starts a consumer, whose child is this test binary.
func (x *exactlyOnce) consumer() *process {
	self, err := os.Executable()
	if err != nil {
		panic(err) // it runs
	}
	args := append([]string{"consume", x.db.Name() + "." + exactlyOnceStream, "--durable", "worker", "--from", "earliest", "--retry-delay", "100ms",
		"--exec", fmt.Sprintf("exec env %s='%s' %s='%s' %s='%s' '%s'", handlerEnv, x.d.URI, handlerDBEnv, x.db.Name(), handlerDirEnv, x.events, self)}, x.work...)
	return start(x.t, x.d.URI, nil, nil, args...)
}

// consume runs the consumer until all is stored, and kills it at the moments.
func (x *exactlyOnce) consume(ctx context.Context, at []int64) {
	for _, n := range at {
		p := x.consumer()
		if !reach(ctx, &x.stored, n) || !p.running() {
			x.t.Errorf("the consumer could not be killed at %d effects; it said:\n%s", n, p.stderr.String())
			return
		}
		p.kill()
		x.t.Logf("killed the consumer at %d effects", x.stored.Load())
	}
	p := x.consumer()
	select {
	case <-x.done:
	case <-p.ended:
		x.t.Errorf("the consumer ended by itself: %v; it said:\n%s", p.err, p.stderr.String())
		return
	case <-ctx.Done():
		x.t.Errorf("%d of %d effects are stored; the consumer said:\n%s", x.stored.Load(), len(x.lines), p.stderr.String())
		return
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		x.t.Error(err)
	}
	x.ends(ctx, p)
}

// killPrimaries kills the primary at the moments, and starts it again.
func (x *exactlyOnce) killPrimaries(ctx context.Context, at []int64) {
	for _, n := range at {
		if !reach(ctx, &x.stored, n) {
			return // the others say why
		}
		m, err := x.d.Cluster.Kill(ctx, localcluster.RolePrimary)
		if err != nil {
			x.t.Errorf("kill the primary: %v", err)
			return
		}
		x.t.Logf("killed the primary %s at %d effects", m.Name, x.stored.Load())
		time.Sleep(3 * time.Second)
		if _, err := x.d.Cluster.Start(ctx, m.Name); err != nil {
			x.t.Errorf("start %s again: %v", m.Name, err)
			return
		}
	}
}

// judge puts together what everyone saw. A message's key is the number of its line, which its place in
// the stream and its content show.
func (x *exactlyOnce) judge() {
	x.t.Helper()
	var rec history.Recorder
	key := func(n int) history.Key { return history.Key{Src: "file", Seq: int64(n)} }
	for n := range x.lines {
		rec.Sent(key(n + 1))
		rec.Acknowledged(key(n + 1)) // the producer ended with 0
	}
	numbers := map[string]int{}
	stream := rec.Reader("stream")
	x.all(exactlyOnceStream, func(doc bson.Raw) {
		if record.IsPrimer(doc) {
			return
		}
		id := doc.Lookup("_id").ObjectID().Hex()
		n := len(numbers) + 1
		numbers[id] = n
		stream.Delivered(key(n))
		if n <= len(x.lines) && !sameJSON(x.lines[n-1], doc.Lookup(record.FieldData)) {
			x.t.Errorf("message %d of the stream is %s, line %d is %s", n, doc.Lookup(record.FieldData), n, x.lines[n-1])
		}
	})
	x.all(handlerColl, func(doc bson.Raw) { rec.Stored(key(numbers[doc.Lookup("_id").StringValue()])) })
	files, err := filepath.Glob(filepath.Join(x.events, "*.ndjson"))
	if err != nil {
		x.t.Fatal(err)
	}
	slices.Sort(files)
	for _, f := range files {
		events, err := history.Load(f)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind != history.KindResumed {
				e.Key = key(numbers[e.Key.Src])
			}
			rec.Add(e)
		}
	}
	v := history.Check(rec.Events(), history.Rules{Stored: true, Readers: map[string]history.ReaderRules{
		"stream":      {},
		handlerReader: {AtLeastOnce: true, Unordered: x.work != nil},
	}})
	x.t.Logf("%d handlers; %s", len(files), v)
	if !v.OK() {
		x.t.Error("the history breaks its rules, see above")
	}
	if got := v.Reader(handlerReader).Handled; got != len(x.lines) {
		x.t.Errorf("%d of %d events were handled", got, len(x.lines))
	}
}

// all calls visit for every document of a collection, as a majority has it, in natural order.
func (x *exactlyOnce) all(coll string, visit func(bson.Raw)) {
	x.t.Helper()
	ctx := within(x.t)
	c := x.db.Collection(coll, options.Collection().SetReadConcern(readconcern.Majority()))
	cur, err := c.Find(ctx, bson.D{})
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = cur.Close(ctx) }()
	for cur.Next(ctx) {
		visit(cur.Current)
	}
	if err := cur.Err(); err != nil {
		x.t.Fatal(err)
	}
}

// sameJSON compares a line with the value that was made of it.
func sameJSON(line []byte, v bson.RawValue) bool {
	var want, got map[string]float64
	doc, ok := v.DocumentOK()
	if !ok || json.Unmarshal(line, &want) != nil {
		return false
	}
	return bson.Unmarshal(doc, &got) == nil && len(want) == 3 && fmt.Sprint(want) == fmt.Sprint(got)
}
