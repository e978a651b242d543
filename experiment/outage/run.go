package outage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/failover"
)

// Defaults of Config.
const (
	// DefaultTrials is for a fault that is named; the matrix has its own numbers.
	DefaultTrials = 5
	// MatrixTrials and MatrixOthers are the trials of the main faults with the fast profile, and of everything else.
	MatrixTrials = 30
	MatrixOthers = 5
	// DefaultLanes is how many sets work side by side: a trial waits most of its time, and three members with
	// their clients take about a third of a core.
	DefaultLanes = 3
	// DefaultRunSeed is the seed of a run that names none.
	DefaultRunSeed = 20151015
)

// Config says what to try. Program is required.
type Config struct {
	// Faults and Profiles are tried with each other, Trials times each; Controls are negative controls. With
	// nothing named it is the matrix: all faults in both profiles, the main ones oftener, all controls.
	Faults   []string
	Profiles []failover.Profile
	Controls []string
	// Trials is how often each is tried; 0 means DefaultTrials, or the matrix's own numbers.
	Trials int
	Seed   uint64
	Lanes  int
	// Network puts members and clients into network namespaces of their own, for which it takes root. Without
	// it only the faults of processes can be tried, and the rest is skipped.
	Network bool
	// Program is the path of capstan, which the clients are.
	Program string
	// Note says what happens, Done is called after each trial, one at a time, with the number of trials of its
	// kind. Both may be nil; Note may be called by several goroutines at a time.
	Note   func(string)
	Done   func(t *Trial, of int)
	Logger zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Seed == 0 {
		c.Seed = DefaultRunSeed
	}
	if c.Lanes == 0 {
		c.Lanes = DefaultLanes
	}
	if len(c.Profiles) == 0 {
		c.Profiles = []failover.Profile{failover.ProfileFast, failover.ProfileDefault}
	}
	if c.Note == nil {
		c.Note = func(string) {}
	}
	if c.Done == nil {
		c.Done = func(*Trial, int) {}
	}
	return c
}

func (c Config) validate() error {
	for _, f := range c.Faults {
		if _, ok := planOf(f); !ok {
			return fmt.Errorf("fault %q is not one of %s", f, strings.Join(Faults(), ", "))
		}
	}
	for _, name := range c.Controls {
		if _, ok := controlOf(name); !ok {
			return fmt.Errorf("control %q is not one of %s", name, strings.Join(Controls(), ", "))
		}
	}
	for _, p := range c.Profiles {
		if p != failover.ProfileDefault && p != failover.ProfileFast {
			return fmt.Errorf("profile %q is not %s or %s", p, failover.ProfileDefault, failover.ProfileFast)
		}
	}
	switch {
	case c.Trials < 0:
		return fmt.Errorf("trials is %d; it must be positive", c.Trials)
	case c.Lanes < 1:
		return fmt.Errorf("lanes is %d; it must be at least 1", c.Lanes)
	case c.Program == "":
		return errors.New("field Program is missing")
	}
	return nil
}

// spec is one trial to be made.
type spec struct {
	number  int
	of      int
	plan    plan
	control *control
	profile failover.Profile
	seed    uint64
}

func (s spec) String() string {
	if s.control != nil {
		return fmt.Sprintf("control %s (%s) %s %d", s.control.name, s.plan.name, s.profile, s.number)
	}
	return fmt.Sprintf("%s %s %d", s.plan.name, s.profile, s.number)
}

// matrix reports whether nothing was named.
func (c Config) matrix() bool { return len(c.Faults) == 0 && len(c.Controls) == 0 }

// trials returns how often a fault is tried with a profile.
func (c Config) trials(p plan, profile failover.Profile) int {
	switch {
	case c.Trials > 0:
		return c.Trials
	case c.matrix() && p.main && profile == failover.ProfileFast:
		return MatrixTrials
	case c.matrix():
		return MatrixOthers
	}
	return DefaultTrials
}

// specs lists the trials of one profile. The rounds of the faults take turns, so that a bad quarter of an
// hour of the machine falls on all of them.
func (c Config) specs(profile failover.Profile, skipped map[string]string) []spec {
	faults, names := c.Faults, c.Controls
	if c.matrix() {
		faults, names = Faults(), Controls()
	}
	var all []spec
	add := func(n int, p plan, ctl *control) {
		key := p.name
		if ctl != nil {
			key = "control " + ctl.name
		}
		if !c.Network && !onLoopback(p) {
			skipped[key] = "it needs network namespaces, that is Linux and root"
			return
		}
		for i := range n {
			rng := rand.New(rand.NewPCG(c.Seed, uint64(len(all))))
			all = append(all, spec{number: i + 1, of: n, plan: p, control: ctl, profile: profile, seed: rng.Uint64()})
		}
	}
	for _, f := range faults {
		p, _ := planOf(f) // validate has looked
		add(c.trials(p, profile), p, nil)
	}
	for _, name := range names {
		ctl, _ := controlOf(name)
		p, _ := planOf(ctl.fault)
		add(c.controlTrials(), p, &ctl)
	}
	slices.SortStableFunc(all, func(a, b spec) int { return a.number - b.number })
	return all
}

// controlTrials is one in the matrix: a control fails as predicted or the checker is broken.
func (c Config) controlTrials() int {
	if c.matrix() {
		return 1
	}
	return max(1, c.Trials)
}

func onLoopback(p plan) bool {
	return slices.Contains([]string{"kill", "term", "stepdown", "freeze", "majority-down", "rolling-restart"}, p.name)
}

// NeedsNetwork reports whether a fault or control, by name, can only be tried with Config.Network.
func NeedsNetwork(name string) bool {
	if c, ok := controlOf(name); ok {
		name = c.fault
	}
	p, ok := planOf(name)
	return ok && !onLoopback(p)
}

// Execute makes all trials and returns what they came to, also with an error: the trials that were made before
// it are whole.
func Execute(ctx context.Context, cfg Config) (*Run, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure failover experiment: %w", err)
	}
	run, err := execute(ctx, cfg)
	if ctx.Err() != nil { // what an interrupted step says of itself is of no use to anybody
		err = context.Cause(ctx)
	}
	return run, err
}

func execute(ctx context.Context, cfg Config) (*Run, error) {
	run := &Run{Machine: experiment.ThisMachine(""), Skipped: make(map[string]string),
		Settings: Settings{Seed: cfg.Seed, Lanes: cfg.Lanes, Trials: make(map[string]int), Attempt: make(map[string]float64), Pool: poolSize}}
	for _, profile := range cfg.Profiles {
		specs := cfg.specs(profile, run.Skipped)
		run.Settings.Profile = append(run.Settings.Profile, string(profile))
		run.Settings.Attempt[string(profile)] = profile.Settings().AttemptTimeout.Seconds()
		for _, disk := range []bool{false, true} {
			part := slices.DeleteFunc(slices.Clone(specs), func(s spec) bool { return s.plan.disk != disk })
			if err := executeOn(ctx, &cfg, profile, disk, part, run); err != nil {
				return run, err
			}
		}
	}
	for _, t := range run.Trials {
		if t.Control == "" {
			run.Settings.Trials[t.Fault+" "+t.Profile]++
		}
		if !slices.Contains(run.Settings.Faults, t.Fault) {
			run.Settings.Faults = append(run.Settings.Faults, t.Fault)
		}
	}
	return run, nil
}

// executeOn makes the trials of one kind of set, on several of these side by side.
func executeOn(ctx context.Context, cfg *Config, profile failover.Profile, disk bool, specs []spec, run *Run) (err error) {
	if len(specs) == 0 {
		return nil
	}
	began := time.Now()
	lanes, err := startLanes(ctx, cfg, min(cfg.Lanes, len(specs)), profile, disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLanes(ctx, lanes)) }()
	if run.Machine.Mongod == "" {
		if run.Machine.Mongod, err = lanes[0].version(ctx); err != nil {
			return err
		}
	}
	if cfg.matrix() && run.Cost == nil {
		c, err := lanes[0].measureCost(ctx)
		if err != nil {
			return err
		}
		run.Cost = &c
	}
	cfg.Note(fmt.Sprintf("%s profile: %d set(s) of three members up in %.1f s; trials: %d", profile, len(lanes), time.Since(began).Seconds(), len(specs)))
	queue := make(chan spec, len(specs)) // holds all of them
	for _, s := range specs {
		queue <- s
	}
	close(queue)
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range lanes {
		g.Go(func() error {
			for s := range queue {
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				if s.control != nil {
					cfg.Note(s.String() + ": the fault is held until it shows, for 90 s at most")
				}
				t, err := l.try(ctx, s)
				if err != nil {
					return fmt.Errorf("try %s: %w", s, err)
				}
				mu.Lock()
				run.Trials = append(run.Trials, *t)
				cfg.Done(t, s.of)
				mu.Unlock()
			}
			return nil
		})
	}
	return g.Wait()
}
