package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/scope"
)

// ErrNothing says that neither side has a collection that takes part: nothing was compared, and nothing is equal.
var ErrNothing = errors.New("verify: no collection of either side takes part (are the names right?)")

const (
	// maxSpans is how many ranges of a collection there are at most.
	maxSpans = 64
	// samplesPerSpan is how many _ids are drawn per range, to cut a collection in pieces of about one size.
	samplesPerSpan = 16
)

// Verifier compares a source and a target. One Run at a time.
type Verifier struct {
	cfg            Config
	set            *scope.Set
	source, target *options.ClientOptions
}

// New checks its arguments; it connects to nothing. The Verifier makes clients of its own from the options, reads from the
// member that their read preference names (the primary if none), and closes them when Run ends.
func New(source, target *options.ClientOptions, cfg Config) (*Verifier, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if source == nil || target == nil {
		return nil, errors.New("verify: the options of the source or of the target are missing")
	}
	set, err := scope.Compile(cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	cfg.Logger = cfg.Logger.With().Str("component", "verify").Logger()
	return &Verifier{cfg: cfg, set: set, source: source, target: target}, nil
}

// Run compares, and returns what it found. It blocks until everything is compared and every document that differs has
// differed for long enough. An error means that it could not finish; the report then holds what was found so far, and with
// Config.Progress the next Run goes on from there. Differences are no error.
func (v *Verifier) Run(ctx context.Context) (Report, error) {
	r := newRun(v.cfg, newSide(sourceName, v.source, v.cfg), newSide(targetName, v.target, v.cfg))
	defer r.source.close(ctx)
	defer r.target.close(ctx)
	if err := r.source.connect(); err != nil {
		return Report{}, err
	}
	if err := r.target.connect(); err != nil {
		return Report{}, err
	}
	if err := r.prepare(ctx, v.set); err != nil {
		return r.report(), err
	}
	g, gctx := errgroup.WithContext(ctx)
	scanned := make(chan struct{})
	g.Go(func() error { return r.judge(gctx, scanned) })
	g.Go(func() error {
		defer close(scanned)
		for _, p := range r.pairs {
			if err := r.pair(gctx, p); err != nil {
				return fmt.Errorf("compare %s: %w", p.source.ns, err)
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		// What is known must not be lost because of what is not; the first error is the one to see.
		_ = r.save(true)
		return r.report(), err
	}
	return r.report(), r.file.remove()
}

// prepare lists what is to be compared and compares all but documents.
func (r *run) prepare(ctx context.Context, set *scope.Set) error {
	if err := r.list(ctx, set); err != nil {
		return err
	}
	if len(r.pairs) == 0 {
		return ErrNothing
	}
	for _, p := range r.pairs {
		p.state = &state{}
		if err := r.describe(ctx, p, set); err != nil {
			return err
		}
	}
	return r.open(ctx, set)
}

func (r *run) report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := Report{Seconds: r.before + time.Since(r.begin).Seconds(), Resumed: r.resume}
	for _, p := range r.pairs {
		if p.state != nil {
			rep.Namespaces = append(rep.Namespaces, p.state.finished())
		}
	}
	rep.sum()
	return rep
}

// pair compares the documents of one collection.
func (r *run) pair(ctx context.Context, p *pair) error {
	if p.state.done || p.state.report.Kind == KindView || p.source.exists && p.target.exists && p.source.kind != p.target.kind {
		return nil
	}
	begin := time.Now()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.state.report.Seconds += time.Since(begin).Seconds()
	}()
	total, err := r.estimate(ctx, p)
	if err != nil {
		return err
	}
	if f := r.cfg.Hooks.OnNamespace; f != nil {
		f(p.source.ns, total)
	}
	switch {
	case p.state.report.Kind == KindTimeseries:
		err = r.countOnly(ctx, p)
	case p.capped():
		err = r.order(ctx, p)
	case !p.sameOrder():
		err = r.byLookup(ctx, p)
	default:
		err = r.ranges(ctx, p, total)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	p.state.done = true
	r.mu.Unlock()
	return r.save(false)
}

// sameOrder reports whether both servers order _ids alike.
func (p *pair) sameOrder() bool {
	if !p.source.exists || !p.target.exists {
		return true
	}
	a, b := p.source.options.Lookup("collation"), p.target.options.Lookup("collation")
	return a.Type == 0 && b.Type == 0 || a.Type != 0 && b.Type != 0 && sameCollation(a, b)
}

// estimate returns about how many documents there are to compare.
func (r *run) estimate(ctx context.Context, p *pair) (int64, error) {
	s, c := r.source, p.source
	if !c.exists {
		s, c = r.target, p.target
	}
	if c.kind != KindCollection {
		return 0, nil
	}
	raw, err := s.run(ctx, c.ns, bson.D{{Key: "count", Value: c.ns.Coll}})
	if err != nil {
		return 0, err
	}
	n, _ := raw.Lookup("n").AsInt64OK()
	return n, nil
}

// ranges compares by ranges of _id, several at the same time.
func (r *run) ranges(ctx context.Context, p *pair, total int64) error {
	if err := r.split(ctx, p, total); err != nil {
		return err
	}
	work := make(chan *span)
	g, gctx := errgroup.WithContext(ctx)
	for range min(r.cfg.Workers, len(p.state.spans)) {
		g.Go(func() error {
			sc := &scanner{run: r, p: p, limit: firstLimit}
			for s := range work {
				if err := sc.scan(gctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(work)
		for _, s := range p.state.spans {
			select {
			case work <- s:
			case <-gctx.Done():
				return context.Cause(gctx)
			}
		}
		return nil
	})
	return g.Wait()
}

// split cuts a collection in ranges of about one size, by _ids drawn at random, and adds the one of MaxKey.
func (r *run) split(ctx context.Context, p *pair, total int64) error {
	if len(p.state.spans) > 0 {
		return nil // of an earlier run
	}
	s, c := r.source, p.source
	if !c.exists {
		s, c = r.target, p.target
	}
	parts := int(min(total/int64(r.cfg.Range)+1, maxSpans))
	var cuts []bson.RawValue
	if parts > 1 {
		var err error
		if cuts, err = s.sample(ctx, c, parts); err != nil {
			return err
		}
	}
	var spans []*span
	at := bson.RawValue{}
	for _, cut := range cuts {
		if cut.Type == bson.TypeMinKey || cut.Type == bson.TypeMaxKey || sameValue(cut, at) {
			continue
		}
		spans = append(spans, &span{next: at, hi: cut})
		at = cut
	}
	spans = append(spans, &span{next: at}, &span{next: maxKey})
	r.mu.Lock()
	defer r.mu.Unlock()
	p.state.report.Compared = "documents by _id"
	p.state.spans = spans
	return nil
}

var maxKey = bson.RawValue{Type: bson.TypeMaxKey}

// sample returns parts-1 _ids that cut a collection in about equal parts, in the server's order.
func (s *side) sample(ctx context.Context, c collection, parts int) ([]bson.RawValue, error) {
	size := parts * samplesPerSpan
	raw, err := s.run(ctx, c.ns, s.limited(bson.D{
		{Key: "aggregate", Value: c.ns.Coll},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: size}}}},
			bson.D{{Key: "$project", Value: byID}},
			bson.D{{Key: "$sort", Value: byID}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: size + 1}}},
	}))
	if err != nil {
		return nil, err
	}
	reply, err := parseReply(raw, size)
	if err != nil {
		return nil, err
	}
	if reply.cursor != 0 {
		s.kill(ctx, c.ns, reply.cursor)
	}
	var cuts []bson.RawValue
	for i := 1; i < parts; i++ {
		if at := i * len(reply.docs) / parts; at > 0 {
			cuts = append(cuts, clone(idOf(reply.docs[at])))
		}
	}
	return cuts, nil
}

// countOnly compares how many measurements two time-series collections have, which is all that is compared of them.
func (r *run) countOnly(ctx context.Context, p *pair) error {
	counts := [2]int64{}
	for i, one := range []struct {
		s *side
		c collection
	}{{r.source, p.source}, {r.target, p.target}} {
		if !one.c.exists {
			continue
		}
		raw, err := one.s.run(ctx, one.c.ns, one.s.limited(bson.D{
			{Key: "aggregate", Value: one.c.ns.Coll},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$count", Value: "n"}}}},
			{Key: "cursor", Value: bson.D{}},
		}))
		if err != nil {
			return err
		}
		reply, err := parseReply(raw, 1)
		if err != nil {
			return err
		}
		if len(reply.docs) > 0 {
			counts[i], _ = reply.docs[0].Lookup("n").AsInt64OK()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &p.state.report
	n.Compared = "number of measurements"
	n.SourceDocuments, n.TargetDocuments = counts[0], counts[1]
	f := Finding{About: AboutCollection, Text: "is a time-series: its measurements are counted and not compared", Note: true}
	if counts[0] != counts[1] {
		f = Finding{About: AboutCollection, Text: fmt.Sprintf("has %d measurements at the source and %d at the target", counts[0], counts[1])}
	}
	n.Findings = append(n.Findings, f)
	return nil
}
