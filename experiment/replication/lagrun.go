package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// lagWindow is the stretch of time over which percentiles are taken.
	lagWindow = 10 * time.Second
	// lagTick is how often writes are sent, lagEvery of them in one command: a server that gets each alone is busy with commands.
	lagTick = 10 * time.Millisecond
	// lagStart bounds the wait for the route to be live, lagEnd for the last writes to arrive.
	lagStart = 2 * time.Minute
	lagEnd   = time.Minute
	// lagTag is the field that holds when a write was sent, in microseconds.
	lagTag = "sent"
)

// LagWindow is the lag of the writes that were sent within one stretch of time.
type LagWindow struct {
	// From is its beginning, from the first write on; Sent and Seen how many writes were sent and arrived.
	From       time.Duration
	Sent, Seen int64
	// P50, P99 and Max are from the sending of a write to the moment at which a reader of the destination's change stream had it:
	// the source's own commit and the reader's are in it.
	P50, P99, Max time.Duration
	// Behind is how late the writer was at most: a writer that does not keep up with its rate measures less.
	Behind time.Duration
}

// lagMeter collects lags. Safe for concurrent use.
type lagMeter struct {
	began time.Time

	mu      sync.Mutex
	windows map[int]*lagBin
	seen    atomic.Int64
	sent    atomic.Int64
}

type lagBin struct {
	sent   int64
	behind time.Duration
	lags   []time.Duration
}

func (m *lagMeter) bin(at time.Time) *lagBin {
	i := int(at.Sub(m.began) / lagWindow)
	b := m.windows[i]
	if b == nil {
		b = &lagBin{}
		m.windows[i] = b
	}
	return b
}

func (m *lagMeter) wrote(at time.Time, n int, behind time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.bin(at)
	b.sent += int64(n)
	b.behind = max(b.behind, behind)
	m.sent.Add(int64(n))
}

func (m *lagMeter) saw(sent, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.bin(sent)
	b.lags = append(b.lags, now.Sub(sent))
	m.seen.Add(1)
}

func (m *lagMeter) result() []LagWindow {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []LagWindow
	for i, b := range m.windows {
		w := LagWindow{From: time.Duration(i) * lagWindow, Sent: b.sent, Seen: int64(len(b.lags)), Behind: b.behind}
		if n := len(b.lags); n > 0 {
			slices.Sort(b.lags)
			w.P50, w.P99, w.Max = b.lags[n/2], b.lags[min(n-1, n*99/100)], b.lags[n-1]
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(x, y LagWindow) int { return int(x.From - y.From) })
	return all
}

// lag measures how long writes take to the destination at a steady rate.
func (b *bench) lag(ctx context.Context) (err error) {
	db := dbName(PartLag)
	source := b.pair.From.Database(db).Collection(docs)
	if err := fill(ctx, source, b.cfg.Seed, 0, liveBase/4, smallDocument); err != nil {
		return err
	}
	var log logBuffer
	pids := [2]int{b.pair.Source.Members()[0].PID, b.pair.Target.Members()[0].PID}
	p, err := startProcess(ctx, &log, &log, b.capstan, b.replicate(db, db)...)
	if err != nil {
		return err
	}
	memory := make(chan int64, 1)
	go func() { memory <- p.watchMemory() }()
	defer func() {
		if err == nil {
			err = p.stop()
		}
		p.kill()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, log.bytes())
		}
	}()
	m := &lagMeter{windows: map[int]*lagBin{}}
	watch, err := b.pair.To.Database(db).Collection(docs).Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetMaxAwaitTime(500*time.Millisecond).SetBatchSize(1000))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watch.Close(context.WithoutCancel(ctx))) }()
	if err := b.awaitLive(ctx, db, p); err != nil {
		return err
	}
	b.note("lag: %d writes a second for %s", b.cfg.LagRate, b.cfg.LagDuration)
	m.began = time.Now()
	before := [3]time.Duration{use(p.cmd.Process.Pid).cpu, use(pids[0]).cpu, use(pids[1]).cpu}
	over := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error { defer close(over); return b.lagWrites(ctx, source, m) })
	g.Go(func() error { return lagReads(ctx, watch, m, over) })
	if err := g.Wait(); err != nil {
		return err
	}
	n := m.seen.Load()
	per := func(now, then time.Duration) float64 { return float64((now - then).Microseconds()) / float64(n) }
	seconds := time.Since(m.began).Seconds()
	row := Row{Part: PartLag, Variant: "capstan", Round: 1, Count: n, Seconds: seconds, Rate: float64(n) / seconds,
		Client: per(use(p.cmd.Process.Pid).cpu, before[0]), Source: per(use(pids[0]).cpu, before[1]), Target: per(use(pids[1]).cpu, before[2]),
		Memory: float64(use(p.cmd.Process.Pid).rss) / (1 << 20)}
	b.run.Rows, b.run.Lag = append(b.run.Rows, row), m.result()
	return nil
}

// awaitLive returns when the route is live.
func (b *bench) awaitLive(ctx context.Context, route string, p *process) (err error) {
	memory, err := openMemory(b.pair)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close(context.WithoutCancel(ctx))) }()
	over := time.Now().Add(lagStart)
	for time.Now().Before(over) && p.running() {
		if s, err := memory.Load(ctx, route); err == nil && s.Phase == replicator.PhaseLive {
			return nil
		}
		if err := pace.Sleep(ctx, poll); err != nil {
			return err
		}
	}
	return fmt.Errorf("the route is not live within %s", lagStart)
}

// lagWrites sends half inserts and half updates, each with the time of its sending. It is an open loop: a write is due when it
// is due, whatever became of the ones before.
func (b *bench) lagWrites(ctx context.Context, source *mongo.Collection, m *lagMeter) error {
	r := rand.New(rand.NewPCG(b.cfg.Seed, 5))
	next, done := liveBase, 0.0
	for i := 0; ; i++ {
		due := m.began.Add(time.Duration(i) * lagTick)
		if due.Sub(m.began) >= b.cfg.LagDuration {
			return nil
		}
		if err := pace.Sleep(ctx, max(0, time.Until(due))); err != nil {
			return err
		}
		done += float64(b.cfg.LagRate) * lagTick.Seconds()
		n := int(done)
		done -= float64(n)
		if n == 0 {
			continue
		}
		now := time.Now()
		models := make([]mongo.WriteModel, 0, n)
		for range n {
			if tag := (bson.E{Key: lagTag, Value: now.UnixMicro()}); i%2 == 0 {
				models = append(models, mongo.NewInsertOneModel().SetDocument(append(smallDocument(r, figureID(next)), tag)))
				next++
			} else {
				id := figureID((i*n + len(models)) % (liveBase / 4)) // all different within one command
				models = append(models, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).SetUpdate(bson.D{{Key: "$set", Value: bson.D{tag}}}))
			}
		}
		if _, err := source.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		m.wrote(now, n, now.Sub(due))
	}
}

// lagReads reads what arrives until everything has that was sent. A write that is overtaken by a later one of the same document may
// arrive as that only, and the missing ones are counted by Sent and Seen.
func lagReads(ctx context.Context, watch *mongo.ChangeStream, m *lagMeter, over <-chan struct{}) error {
	var end time.Time
	for {
		if watch.TryNext(ctx) {
			sent, ok := watch.Current.Lookup("fullDocument", lagTag).Int64OK()
			if !ok {
				sent, ok = watch.Current.Lookup("updateDescription", "updatedFields", lagTag).Int64OK()
			}
			if ok {
				m.saw(time.UnixMicro(sent), time.Now())
			}
			continue
		}
		if err := errors.Join(watch.Err(), context.Cause(ctx)); err != nil {
			return err
		}
		select {
		case <-over:
			if end.IsZero() {
				end = time.Now().Add(lagEnd)
			}
		default:
		}
		if !end.IsZero() && (m.seen.Load() >= m.sent.Load() || time.Now().After(end)) {
			return nil
		}
	}
}
