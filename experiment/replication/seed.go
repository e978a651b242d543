package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/experiment/replication/workload"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// errJudged says that a run has failed by what it found, and not by what kept it from being made.
var errJudged = errors.New("not equal")

// trial is one random run.
type trial struct {
	cfg    SeedsConfig
	pair   *Pair
	plan   Plan
	route  Route
	set    *scope.Set
	load   *workload.Load
	memory Memory // nil if the replicator has none
	runner *runner
	log    logBuffer
	files  map[string][]byte
	row    Seed
	phases map[string]int
}

// runSeed makes one run and returns its result. The error says what kept it from being made.
func runSeed(ctx context.Context, cfg SeedsConfig, pair *Pair, seed uint64) (*Seed, error) {
	began := time.Now()
	t, err := newTrial(cfg, pair, seed)
	if err != nil {
		return nil, err
	}
	if t.memory != nil {
		defer func() { _ = t.memory.Close(context.WithoutCancel(ctx)) }()
	}
	defer t.runner.abandon()
	err = t.run(ctx)
	t.count()
	t.row.Took = time.Since(began)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, errJudged)) {
		return nil, err
	}
	t.row.Equal = err == nil
	if err != nil {
		t.runner.abandon()
		t.files["capstan.log"], t.files["plan.txt"] = t.log.bytes(), []byte(t.describe(err))
		dir, kept := cfg.keep(seed, t.files)
		t.row.Reason = err.Error()
		if dir != "" {
			t.row.Reason += "; kept in " + dir
		}
		return &t.row, kept
	}
	return &t.row, t.clean(ctx)
}

func newTrial(cfg SeedsConfig, pair *Pair, seed uint64) (*trial, error) {
	plan := PlanOf(seed, cfg.Length)
	if cfg.NoFaults {
		plan.Hits = nil
	}
	prefix := fmt.Sprintf("s%d", seed)
	c := scope.Config{Include: []string{prefix + "a.*", prefix + "b.*"}}
	if plan.Rename {
		c.Rename = []scope.Rename{{From: prefix + "a.*", To: prefix + "moved.*"}}
	}
	if plan.Filter {
		query, err := bson.Marshal(bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: int32(50)}}}})
		if err != nil {
			return nil, err
		}
		c.Filters = []scope.Filter{{Pattern: prefix + "a.docs1", Query: query}}
	}
	set, err := scope.Compile(c)
	if err != nil {
		return nil, err
	}
	load, err := workload.New(workload.Config{Seed: seed, Prefix: prefix, Ops: cfg.Ops / workload.DefaultWriters, Documents: cfg.Documents,
		Rate: float64(cfg.Ops) / cfg.Length.Seconds(), Without: cfg.Without, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	path, err := cfg.Program.path()
	if err != nil {
		return nil, err
	}
	t := &trial{cfg: cfg, pair: pair, plan: plan, set: set, load: load, route: Route{Name: prefix, Scope: c}, files: map[string][]byte{}, phases: map[string]int{},
		row: Seed{Seed: seed, Rename: plan.Rename, Filter: plan.Filter, SourceFaults: plan.Text(Source), TargetFaults: plan.Text(Target)}}
	if cfg.Program.Memory != nil {
		if t.memory, err = cfg.Program.Memory(pair); err != nil {
			return nil, err
		}
	}
	t.runner = &runner{program: path, args: cfg.Program.Args(pair, t.route), log: &t.log}
	return t, nil
}

// run is the run: errors of what it judges wrap errJudged.
func (t *trial) run(ctx context.Context) error {
	if err := t.pair.healthy(ctx); err != nil {
		return err
	}
	if err := t.load.Prepare(ctx, t.pair.From); err != nil {
		return err
	}
	if err := t.disturb(ctx); err != nil {
		return err
	}
	if err := t.pair.healthy(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := t.arrive(ctx); err != nil {
		return err
	}
	t.row.Catching = time.Since(began)
	if err := t.judge(ctx); err != nil {
		return err
	}
	if err := t.runner.stop(); err != nil {
		return fmt.Errorf("%w: %w", errJudged, err)
	}
	return nil
}

// disturb runs workload, replicator and faults side by side until the workload and the faults are over. Everything
// is whole again then, or about to be.
func (t *trial) disturb(ctx context.Context) error {
	began := time.Now()
	if err := t.runner.start(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- t.runner.watch(watching) }()
	// A server that does not come back ends all of it: with a member missing, the workload could wait for ever.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.load.Run(gctx, t.pair.From) })
	for _, side := range []Side{Capstan, Source, Target} {
		g.Go(func() error { return t.strikes(gctx, side, began) })
	}
	err := g.Wait()
	stop()
	if failed := <-watched; failed != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errJudged, failed))
	}
	return err
}

// strikes makes the faults of one side happen, each when it is due and the one before it is over.
func (t *trial) strikes(ctx context.Context, side Side, began time.Time) error {
	for _, h := range t.plan.Hits {
		if h.Side != side {
			continue
		}
		if h.Copied {
			if err := t.copied(ctx); err != nil {
				return err
			}
			began = time.Now()
		}
		if err := pace.Sleep(ctx, max(0, h.At-time.Since(began))); err != nil {
			return err
		}
		if side != Capstan {
			if err := t.pair.strike(ctx, h); err != nil {
				return err
			}
			continue
		}
		t.phases[t.phase(ctx)]++ // only this goroutine does
		t.row.Kills++
		if err := t.runner.kill(ctx, h.At%300); err != nil {
			return err
		}
	}
	return nil
}

// copyTime bounds the wait for the end of a copy: a fault that waits for it comes in any case, and the row says in which phase.
const copyTime = 20 * time.Second

// copied returns when the route has its copy.
func (t *trial) copied(ctx context.Context) error {
	for end := time.Now().Add(copyTime); time.Now().Before(end); {
		if phase := t.phase(ctx); phase == string(replicator.PhaseCatchingUp) || phase == string(replicator.PhaseLive) {
			return nil
		}
		if err := pace.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// phase says what the replicator is doing, as far as the destination can be asked.
func (t *trial) phase(ctx context.Context) string {
	if t.memory == nil {
		return "unknown"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return phaseOf(t.memory.Load(ctx, t.route.Name))
}

// arrive returns when the destination has everything that the source has now.
func (t *trial) arrive(ctx context.Context) error {
	at, err := t.pair.mark(ctx, t.load.Databases()[0])
	if err != nil {
		return err
	}
	return t.pair.await(ctx, t.cfg.Patience, t.runner, func(ctx context.Context) (bool, error) { return t.arrived(ctx, at) })
}

// arrived reports whether the destination has everything up to a time. The error says what is missing.
func (t *trial) arrived(ctx context.Context, at record.Timestamp) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if t.memory == nil {
		ns := t.set.Target(record.Namespace{DB: t.load.Databases()[0], Coll: markCollection})
		n, err := database(t.pair.To, ns.DB).Collection(ns.Coll).CountDocuments(ctx, bson.D{{Key: "_id", Value: "end"}})
		if err == nil && n == 0 {
			err = errors.New("the last document is not there")
		}
		return n > 0, err
	}
	return passed(ctx, t.memory, t.route.Name, at)
}

// judge compares both sides.
func (t *trial) judge(ctx context.Context) error {
	differences, n, err := Compare(ctx, t.pair.From, t.pair.To, t.set, t.load.Databases())
	if err != nil {
		return err
	}
	t.row.Documents, t.row.Differences = n, int64(len(differences))
	t.files["compare.txt"] = []byte(strings.Join(differences, "\n") + "\n")
	var found []string
	if len(differences) > 0 {
		found = append(found, differences[0])
	}
	if t.cfg.Verify != nil {
		n, report, err := t.cfg.Verify(ctx, t.pair, t.route)
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		t.row.Verified = n
		t.files["verify.json"] = report
		if n > 0 {
			found = append(found, fmt.Sprintf("verify finds %d differences", n))
		}
	}
	if t.memory != nil {
		if t.row.Letters, err = t.memory.Letters(ctx, t.route.Name); err != nil {
			return err
		}
		if t.row.Letters > 0 {
			found = append(found, fmt.Sprintf("%d dead letters", t.row.Letters))
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %s", errJudged, strings.Join(found, "; "))
	}
	return nil
}

func (t *trial) count() {
	s := t.load.Stats()
	t.row.Done, t.row.Repeats = s.Total(), s.Repeats
	for _, n := range s.Refused {
		t.row.Refused += n
	}
	t.row.Starts, t.row.Restarts = t.runner.starts, t.runner.restarts
	var all []string
	for _, phase := range slices.Sorted(maps.Keys(t.phases)) {
		all = append(all, fmt.Sprintf("%s %d", phase, t.phases[phase]))
	}
	t.row.Phases = strings.Join(all, ", ")
}

// describe says what was to happen and what did.
func (t *trial) describe(err error) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "seed %d: %v\n\n%s %s\n\n", t.plan.Seed, err, t.runner.program, strings.Join(t.runner.args, " "))
	for _, h := range t.plan.Hits {
		fmt.Fprintln(&b, h)
	}
	s := t.load.Stats()
	fmt.Fprintf(&b, "\noperations %v\nrefused %v\n", s.Done, s.Refused)
	return b.String()
}

// clean drops what the run has made.
func (t *trial) clean(ctx context.Context) error {
	for _, db := range t.load.Databases() {
		target := t.set.Target(record.Namespace{DB: db, Coll: "x"}).DB
		if err := errors.Join(t.pair.From.Database(db).Drop(ctx), t.pair.To.Database(target).Drop(ctx)); err != nil {
			return fmt.Errorf("drop databases: %w", err)
		}
	}
	return nil
}

// logBuffer keeps the end of what a process said. Safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	b  []byte
}

// logKeep bounds a logBuffer.
const logKeep = 4 << 20

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b = append(l.b, b...); len(l.b) > 2*logKeep {
		l.b = append([]byte(nil), l.b[len(l.b)-logKeep:]...)
	}
	return len(b), nil
}

func (l *logBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b)
}
