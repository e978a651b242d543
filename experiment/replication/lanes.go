package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/experiment"
)

// freshServers bounds how often a run is made again on other servers. mongod 6.0.5 does not always start again after a SIGKILL (it
// misses the table of an index that was being dropped, and ends itself), which says nothing of the replicator.
const freshServers = 2

// Seeds makes the runs, one after the other in each lane, each in databases of its own and with a route of its own. The error says
// what kept it from going on; a run that fails by its judges is a result and no error. What was done is returned in any case.
func Seeds(ctx context.Context, cfg SeedsConfig) (*SeedsRun, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	run := &SeedsRun{Settings: SeedsSettings{cfg.Seeds, cfg.First, cfg.Ops, cfg.Documents, cfg.Length.String(), cfg.Without, cfg.NoFaults}, Unequal: []uint64{}}
	run.Machine = experiment.ThisMachine("")
	done, err := run.resume(cfg.Before)
	if err != nil {
		return nil, err
	}
	l := &lanes{cfg: cfg, run: run}
	for seed := cfg.First; seed < cfg.First+uint64(cfg.Seeds); seed++ {
		if !done[seed] {
			l.left = append(l.left, seed)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for range min(cfg.Lanes, max(1, len(l.left))) {
		g.Go(func() error { return l.lane(ctx) })
	}
	return run, g.Wait()
}

// lanes are what the lanes of one call share.
type lanes struct {
	cfg SeedsConfig

	mu sync.Mutex
	// Guarded by mu.
	left []uint64 // seeds that nobody has begun
	run  *SeedsRun
}

// lane makes runs until none is left.
func (l *lanes) lane(ctx context.Context) (err error) {
	pair := l.cfg.Pair
	if pair == nil {
		if pair, err = l.servers(ctx); err != nil {
			return err
		}
		defer func() {
			if pair != nil { // no other servers could be had
				err = errors.Join(err, pair.Down(context.WithoutCancel(ctx)))
			}
		}()
	}
	mongod, err := version(ctx, pair.From)
	if err != nil {
		return err
	}
	for seed, ok := l.take(mongod); ok; seed, ok = l.take(mongod) {
		s, err := runSeed(ctx, l.cfg, pair, seed)
		for try := 0; err != nil && ctx.Err() == nil && l.cfg.Pair == nil && try < freshServers; try++ {
			l.broke(seed, err)
			// They are beyond help: an error while they are taken down says nothing new.
			if down := pair.Down(context.WithoutCancel(ctx)); down != nil {
				l.cfg.Logger.Warn().Err(down).Msg("take broken servers down")
			}
			if pair, err = l.servers(ctx); err != nil {
				return err
			}
			s, err = runSeed(ctx, l.cfg, pair, seed)
		}
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		if err := l.done(s); err != nil {
			return err
		}
	}
	return nil
}

func (l *lanes) servers(ctx context.Context) (*Pair, error) {
	l.cfg.Note("starting two replica sets of three")
	return StartPair(ctx, 3, 0, l.cfg.Logger)
}

// take gives out the next seed.
func (l *lanes) take(mongod string) (seed uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Machine.Mongod = mongod
	if len(l.left) == 0 {
		return 0, false
	}
	seed, l.left = l.left[0], l.left[1:]
	return seed, true
}

func (l *lanes) broke(seed uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Broken = append(l.run.Broken, fmt.Sprintf("seed %d: %v", seed, err))
	l.cfg.Note(fmt.Sprintf("seed %d could not be made (%v): again on other servers", seed, err))
}

func (l *lanes) done(s *Seed) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Seeds = append(l.run.Seeds, *s)
	slices.SortFunc(l.run.Seeds, func(a, b Seed) int { return cmp.Compare(a.Seed, b.Seed) })
	if !s.Equal {
		l.run.Unequal = append(l.run.Unequal, s.Seed)
		slices.Sort(l.run.Unequal)
	}
	return l.cfg.Done(s, l.run)
}
