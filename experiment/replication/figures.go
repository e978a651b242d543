package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/experiment"
)

// The parts of Figures.
const (
	PartCopySmall = "copy-small"
	PartCopyLarge = "copy-large"
	PartInserts   = "live-inserts"
	PartUpdates   = "live-updates"
	PartLag       = "lag"
	PartVerify    = "verify"
)

// Parts returns the names of all parts in the order in which they run.
func Parts() []string {
	return []string{PartCopySmall, PartCopyLarge, PartInserts, PartUpdates, PartLag, PartVerify}
}

// FiguresConfig says what Figures measures. The zero value is the whole at full size.
type FiguresConfig struct {
	// Only names parts; empty means all.
	Only []string
	// Quick shrinks what is not set to about two minutes: the figures mean little then.
	Quick bool
	// Rounds is how often each variant of a copy and of live changes is measured.
	Rounds int
	// Small and Large are how many documents of 200 B and of 1 KB are copied; Inserts how many documents the mix of live changes
	// inserts, with a fifth as many updates; Updates how many the other has.
	Small, Large, Inserts, Updates int
	// LagRate is the number of writes a second, LagDuration how long.
	LagRate     int
	LagDuration time.Duration
	// Seed decides the contents.
	Seed uint64
	// Capstan is the path of the program, "" for the one that runs this; Naive are the arguments with which it becomes a naive
	// program (RunNaive), whose job follows.
	Capstan string
	Naive   []string
	// Logger hears of servers. Note says how far it is.
	Logger zerolog.Logger
	Note   func(string)
}

// Defaults of FiguresConfig.
const (
	DefaultRounds      = 3
	DefaultSmall       = 1_000_000
	DefaultLarge       = 200_000
	DefaultInserts     = 60_000
	DefaultUpdates     = 40_000
	DefaultLagRate     = 2000
	DefaultLagDuration = 10 * time.Minute
)

func (c FiguresConfig) withDefaults() FiguresConfig {
	def := func(v *int, full, quick int) {
		if *v == 0 {
			*v = full
			if c.Quick {
				*v = quick
			}
		}
	}
	def(&c.Rounds, DefaultRounds, 1)
	def(&c.Small, DefaultSmall, 60_000)
	def(&c.Large, DefaultLarge, 20_000)
	def(&c.Inserts, DefaultInserts, 8_000)
	def(&c.Updates, DefaultUpdates, 4_000)
	def(&c.LagRate, DefaultLagRate, 500)
	if c.LagDuration == 0 {
		c.LagDuration = DefaultLagDuration
		if c.Quick {
			c.LagDuration = 20 * time.Second
		}
	}
	if c.Note == nil {
		c.Note = func(string) {}
	}
	return c
}

func (c FiguresConfig) validate() error {
	for _, name := range c.Only {
		if !slices.Contains(Parts(), name) {
			return fmt.Errorf("field Only: %q is not one of %s", name, strings.Join(Parts(), ", "))
		}
	}
	if c.Rounds < 1 || c.Small < 100 || c.Large < 100 || c.Inserts < 100 || c.Updates < 100 || c.LagRate < 10 || c.LagDuration < time.Second {
		return errors.New("a field is too small to be measured: at least 1 round, 100 documents, 10 writes a second for a second")
	}
	return nil
}

// Row is one measurement: one variant of one part in one round.
type Row struct {
	Part, Variant string
	Round         int
	// Count is how many documents or changes, Seconds how long the program ran from its start to its end.
	Count   int64
	Seconds float64
	// Rate is Count by Seconds. Client, Source and Target are microseconds of CPU per document of the program and of both servers.
	Rate, Client, Source, Target float64
	// Memory is the program's most resident memory, in MB.
	Memory float64
}

// FiguresRun is what Figures measured.
type FiguresRun struct {
	Machine  experiment.Machine `json:"machine"`
	Settings FiguresSettings    `json:"settings"`
	Rows     []Row              `json:"-"`
	Lag      []LagWindow        `json:"-"`
	Figures  []Figure           `json:"figures"`
}

// FiguresSettings say what was measured.
type FiguresSettings struct {
	Parts       []string `json:"parts"`
	Rounds      int      `json:"rounds"`
	Small       int      `json:"small_documents"`
	Large       int      `json:"large_documents"`
	Inserts     int      `json:"inserts"`
	Updates     int      `json:"updates"`
	LagRate     int      `json:"lag_writes_per_second"`
	LagDuration string   `json:"lag_duration"`
	Seed        uint64   `json:"seed"`
}

// bench is one run of Figures.
type bench struct {
	cfg     FiguresConfig
	pair    *Pair
	capstan string
	run     *FiguresRun
}

// Figures measures on two sets of one, which it starts: capstan and naive programs do the same in turns, each as a
// process of its own. What was measured is returned also with an error, which says what kept it from going on.
func Figures(ctx context.Context, cfg FiguresConfig) (run *FiguresRun, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if len(cfg.Only) == 0 {
		cfg.Only = Parts()
	}
	b := &bench{cfg: cfg, run: &FiguresRun{Machine: experiment.ThisMachine(""), Settings: FiguresSettings{cfg.Only, cfg.Rounds, cfg.Small, cfg.Large,
		cfg.Inserts, cfg.Updates, cfg.LagRate, cfg.LagDuration.String(), cfg.Seed}}}
	if b.capstan, err = (Program{Path: cfg.Capstan}).path(); err != nil {
		return nil, err
	}
	if b.pair, err = StartPair(ctx, 1, 0, cfg.Logger); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.pair.Down(context.WithoutCancel(ctx))) }()
	if b.run.Machine.Mongod, err = version(ctx, b.pair.From); err != nil {
		return nil, err
	}
	for _, part := range Parts() {
		if !slices.Contains(cfg.Only, part) {
			continue
		}
		if err := b.part(ctx, part); err != nil {
			b.run.Figures = b.run.figures()
			return b.run, fmt.Errorf("%s: %w", part, err)
		}
	}
	b.run.Figures = b.run.figures()
	return b.run, nil
}

func (b *bench) part(ctx context.Context, part string) error {
	switch part {
	case PartCopySmall:
		return b.copies(ctx, part, b.cfg.Small, smallDocument)
	case PartCopyLarge:
		return b.copies(ctx, part, b.cfg.Large, largeDocument)
	case PartInserts:
		return b.lives(ctx, part, liveVariants(part))
	case PartUpdates:
		return b.lives(ctx, part, liveVariants(part))
	case PartLag:
		return b.lag(ctx)
	}
	return b.verify(ctx)
}

func (b *bench) note(format string, args ...any) { b.cfg.Note(fmt.Sprintf(format, args...)) }

// measure runs a program to its end and returns what it took.
func (b *bench) measure(ctx context.Context, row Row, args []string) (Row, error) {
	source, target := b.pair.Source.Members()[0].PID, b.pair.Target.Members()[0].PID
	before := [2]usage{use(source), use(target)}
	var log logBuffer
	p, err := startProcess(ctx, &log, &log, b.capstan, args...)
	if err != nil {
		return row, err
	}
	memory := make(chan int64, 1)
	go func() { memory <- p.watchMemory() }()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.kill()
		<-memory
		return row, context.Cause(ctx)
	}
	row.Seconds = time.Since(p.began).Seconds()
	row.Memory = float64(<-memory) / (1 << 20)
	if p.err != nil {
		return row, fmt.Errorf("capstan %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), p.err, log.bytes())
	}
	row.Rate = float64(row.Count) / row.Seconds
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(row.Count) }
	row.Client = per(p.cpu)
	row.Source, row.Target = per(use(source).cpu-before[0].cpu), per(use(target).cpu-before[1].cpu)
	b.note("%-13s %-10s round %d: %9.0f/s, CPU per document %.1f µs (source %.1f, target %.1f), %.0f MB", row.Part, row.Variant, row.Round, row.Rate,
		row.Client, row.Source, row.Target, row.Memory)
	b.run.Rows = append(b.run.Rows, row)
	return row, nil
}

// turn returns the order of a round: each begins with another variant, so that none always finds the machine as another left it.
func turn[T any](variants []T, round int) []T {
	n := len(variants)
	out := make([]T, 0, n)
	for i := range n {
		out = append(out, variants[(i+round)%n])
	}
	return out
}
