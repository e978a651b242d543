package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// demoDB is the database of the demo at the source; late flights go to demoLate.
	demoDB   = "real"
	demoLate = "delayed"
	// demoDelay is by how many minutes a flight must be late to be replicated.
	demoDelay = 60
	// demoRate is how many changes a second the writers make.
	demoRate = 300
	// demoDown is how long a killed member stays down.
	demoDown = 3 * time.Second
	// demoLive is how long the route is live and under load after the last fault.
	demoLive = 5 * time.Second
	// demoPatience bounds every wait.
	demoPatience = 2 * time.Minute
)

// DemoConfig says what Demo does. The zero value is valid.
type DemoConfig struct {
	// Data is the folder with flights.ndjson.gz, movies.ndjson.gz and earthquakes.ndjson.gz; what is missing there is generated in the
	// same shape.
	Data string
	// Flights is how many flights there are; 0 means DefaultFlights.
	Flights int
	// Seed decides what is written and when capstan is killed.
	Seed uint64
	// Capstan is the path of the program, "" for the one that runs this. Program, if it has arguments, is used instead for the route.
	Capstan string
	Program Program
	// Logger hears of servers. Note says what happens, for people.
	Logger zerolog.Logger
	Note   func(format string, args ...any)
}

// DefaultFlights keeps the demo under three minutes on two cores.
const DefaultFlights = 100_000

// DemoResult is what Demo found.
type DemoResult struct {
	// Copied were in the source before, Changes were made since; Late flights are what the filter lets through in the end.
	Copied, Changes, Late int64
	// Generated names the data that was not at hand.
	Generated []string
	// Report is what `capstan verify` printed; Equal, that it found no difference. Letters are dead letters.
	Report  string
	Equal   bool
	Letters int64
	Took    time.Duration
}

// demo is one run of Demo.
type demo struct {
	cfg     DemoConfig
	r       *rand.Rand
	pair    *Pair
	route   Route
	runner  *runner
	memory  Memory
	log     logBuffer
	result  DemoResult
	changes atomic.Int64
}

// Demo replicates real data between two sets of three, filtered and live, while writers change it; kills the replicator in the
// middle of the copy and a primary on either side later; then lets it catch up and has `capstan verify` compare both sides. The error says
// what kept it from being done; the result is what it came to.
func Demo(ctx context.Context, cfg DemoConfig) (result DemoResult, err error) {
	began := time.Now()
	if cfg.Flights == 0 {
		cfg.Flights = DefaultFlights
	}
	if cfg.Note == nil {
		cfg.Note = func(string, ...any) {}
	}
	if cfg.Program.Args == nil {
		cfg.Program = CapstanProgram(cfg.Capstan)
	}
	d := &demo{cfg: cfg, r: rand.New(rand.NewPCG(cfg.Seed, 9))}
	query, err := bson.Marshal(bson.D{{Key: "delay", Value: bson.D{{Key: "$gt", Value: int32(demoDelay)}}}})
	if err != nil {
		return d.result, err
	}
	d.route = Route{Name: "demo", Scope: scope.Config{Include: []string{demoDB + ".*"},
		Rename:  []scope.Rename{{From: demoDB + ".flights", To: demoLate + ".flights"}},
		Filters: []scope.Filter{{Pattern: demoDB + ".flights", Query: query}}}}
	cfg.Note("1/5  two replica sets of three")
	if d.pair, err = StartPair(ctx, 3, 0, cfg.Logger); err != nil {
		return d.result, err
	}
	defer func() { err = errors.Join(err, d.pair.Down(context.WithoutCancel(ctx))) }()
	err = d.run(ctx)
	d.result.Changes, d.result.Took = d.changes.Load(), time.Since(began)
	return d.result, err
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := d.load(ctx); err != nil {
		return err
	}
	path, err := d.cfg.Program.path()
	if err != nil {
		return err
	}
	if d.memory, err = openMemory(d.pair); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.memory.Close(context.WithoutCancel(ctx))) }()
	d.runner = &runner{program: path, args: d.cfg.Program.Args(d.pair, d.route), log: &d.log}
	defer d.runner.abandon()
	if err := d.disturb(ctx); err != nil {
		return d.explain(err)
	}
	d.cfg.Note("4/5  the writers rest; the route catches up")
	if err := d.pair.healthy(ctx); err != nil {
		return err
	}
	at, err := d.pair.mark(ctx, demoDB)
	if err != nil {
		return err
	}
	if err := d.pair.await(ctx, demoPatience, d.runner, func(ctx context.Context) (bool, error) { return passed(ctx, d.memory, d.route.Name, at) }); err != nil {
		return d.explain(err)
	}
	if err := d.runner.stop(); err != nil {
		return d.explain(err)
	}
	return d.compare(ctx)
}

// explain adds the end of what the replicator said.
func (d *demo) explain(err error) error {
	const most = 2000
	said := d.log.bytes()
	if len(said) > most {
		said = said[len(said)-most:]
	}
	return fmt.Errorf("%w; the replicator's last words:\n%s", err, said)
}

// load fills the source.
func (d *demo) load(ctx context.Context) error {
	began := time.Now()
	for _, s := range demoSets(d.cfg.Flights) {
		n, generated, err := s.fill(ctx, d.pair.From.Database(demoDB), d.cfg.Data, d.cfg.Seed)
		if err != nil {
			return err
		}
		if generated {
			d.result.Generated = append(d.result.Generated, s.name)
		}
		d.result.Copied += n
		d.cfg.Note("     %d %s", n, s.name)
	}
	d.cfg.Note("     in the source after %.0f s; the route takes films and earthquakes whole, and flights that are more than %d minutes late as %s.flights",
		time.Since(began).Seconds(), demoDelay, demoLate)
	return nil
}

// disturb runs the route under load and breaks things.
func (d *demo) disturb(ctx context.Context) error {
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	for w := range 2 {
		g.Go(func() error { return d.write(writing, uint64(w)) })
	}
	g.Go(func() error { return d.runner.watch(writing) })
	d.cfg.Note("2/5  the route copies, while %d changes a second are made; it is killed in the middle", demoRate)
	err := d.runner.start(ctx)
	if err == nil {
		err = d.breakThings(ctx)
	}
	stop()
	return errors.Join(err, g.Wait())
}

func (d *demo) breakThings(ctx context.Context) error {
	half := func(s replicator.State) bool {
		return s.Phase != replicator.PhaseCopying || s.Totals.Scanned*2 >= d.result.Copied
	}
	if err := d.until(ctx, half); err != nil {
		return err
	}
	d.cfg.Note("     kill -9 of capstan")
	if err := d.runner.kill(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	d.cfg.Note("     capstan is started again")
	if err := d.until(ctx, func(s replicator.State) bool { return s.Phase == replicator.PhaseLive }); err != nil {
		return err
	}
	d.cfg.Note("3/5  the route is live; primaries are killed")
	for _, side := range []Side{Source, Target} {
		d.cfg.Note("     kill -9 of the primary of the %s, for %.0f s", side, demoDown.Seconds())
		if err := d.pair.strike(ctx, Hit{Side: side, Fault: "kill", Hold: demoDown}); err != nil {
			return err
		}
		d.cfg.Note("     it is started again; %d changes so far", d.changes.Load())
		if err := d.runner.kill(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		d.cfg.Note("     kill -9 of capstan, and started again")
		if err := pace.Sleep(ctx, demoLive); err != nil {
			return err
		}
	}
	return nil
}

// until waits until the route's state is as asked for, and says how far it is meanwhile.
func (d *demo) until(ctx context.Context, ok func(replicator.State) bool) error {
	over, said := time.Now().Add(demoPatience), time.Now()
	for time.Now().Before(over) {
		ask, cancel := context.WithTimeout(ctx, askTime)
		s, err := d.memory.Load(ask, d.route.Name)
		cancel()
		if err == nil && ok(s) {
			return nil
		}
		if err == nil && time.Since(said) >= 2*time.Second {
			said = time.Now()
			d.cfg.Note("     %s: %d documents looked at, %d copied, %d changes applied", s.Phase, s.Totals.Scanned, s.Totals.Matched, s.Totals.Applied)
		}
		if err := d.runner.check(ctx); err != nil {
			return err
		}
		if err := pace.Sleep(ctx, poll/2); err != nil {
			return err
		}
	}
	return errors.New("the route did not get on in time")
}

// write changes documents until ctx ends. An error of a server in trouble only slows it down: what was applied is what counts.
func (d *demo) write(ctx context.Context, w uint64) error {
	r := rand.New(rand.NewPCG(d.cfg.Seed, 100+w))
	db := d.pair.From.Database(demoDB)
	for n := 0; ctx.Err() == nil; n++ {
		try, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := d.change(try, db, r, int64(w)<<40+int64(n))
		cancel()
		c := mongoerr.Classify(err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			d.changes.Add(1)
		case !c.Network && !c.Timeout && c.Read != mongoerr.ReadRetry:
			return fmt.Errorf("change the source: %w", err)
		}
		if err := pace.Sleep(ctx, time.Second*2/demoRate); err != nil {
			return nil // it was asked to end
		}
	}
	return nil
}

// change makes one change: flights come into the filter and leave it, and so on.
func (d *demo) change(ctx context.Context, db *mongo.Database, r *rand.Rand, fresh int64) error {
	flight := bson.D{{Key: "_id", Value: int64(r.IntN(d.cfg.Flights))}}
	set := func(field string, v any) bson.D {
		return bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: v}}}}
	}
	var err error
	switch r.IntN(8) {
	case 0:
		_, err = db.Collection("flights").DeleteOne(ctx, flight)
	case 1:
		_, err = db.Collection("flights").InsertOne(ctx, bson.D{{Key: "_id", Value: fresh + 1<<50}, {Key: "delay", Value: int32(r.IntN(200))}, {Key: "distance", Value: int32(r.IntN(3000))}})
		if mongoerr.IsDuplicateID(err) {
			err = nil // an attempt whose answer was lost
		}
	case 2:
		_, err = db.Collection("movies").UpdateOne(ctx, bson.D{{Key: "_id", Value: int64(r.IntN(3000))}}, set("IMDB Votes", int32(r.IntN(100_000))))
	case 3:
		_, err = db.Collection("earthquakes").UpdateOne(ctx, bson.D{{Key: "_id", Value: int64(r.IntN(1700))}},
			bson.D{{Key: "$push", Value: bson.D{{Key: "geometry.coordinates", Value: bson.D{{Key: "$each", Value: bson.A{r.Float64()}}, {Key: "$slice", Value: -6}}}}}})
	default:
		_, err = db.Collection("flights").UpdateOne(ctx, flight, set("delay", int32(r.IntN(130))))
	}
	return err
}

// compare has `capstan verify` compare both sides.
func (d *demo) compare(ctx context.Context) error {
	d.cfg.Note("5/5  capstan verify")
	late, err := database(d.pair.To, demoLate).Collection("flights").CountDocuments(ctx, bson.D{})
	if err != nil {
		return err
	}
	d.result.Late = late
	if d.result.Letters, err = d.memory.Letters(ctx, d.route.Name); err != nil {
		return err
	}
	path, err := (Program{Path: d.cfg.Capstan}).path()
	if err != nil {
		return err
	}
	var said, log logBuffer
	p, err := startProcess(ctx, &log, &said, path, append([]string{"verify", "--idle"}, sideArgs(d.pair, d.route)...)...)
	if err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.kill()
		return context.Cause(ctx)
	}
	d.result.Report = string(said.bytes())
	d.result.Equal = p.err == nil
	if p.err != nil && p.exitCode() != exitDifference {
		return fmt.Errorf("capstan verify: %w: %s", p.err, log.bytes())
	}
	return nil
}

// exitDifference is the exit code of a verification that found one.
const exitDifference = 6
