package mongodb_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

// streamPatience bounds every wait for something that must come: the machine may be loaded.
const streamPatience = 90 * time.Second

// streamEnds are the two streams of a test, "in" and "out" in a database each.
type streamEnds struct {
	t           *testing.T
	from, to    *mongotest.Deployment
	in, out     *mongo.Database
	nsIn, nsOut record.Namespace
	name        string
	log         zerolog.Logger
	seqs        map[string]int64
}

func newStreamEnds(t *testing.T, from, to *mongotest.Deployment, c stream.Config) *streamEnds {
	t.Helper()
	e := &streamEnds{t: t, from: from, to: to, in: from.DB(t), out: to.DB(t), seqs: map[string]int64{}, log: zerolog.New(zerolog.NewTestWriter(t))}
	e.nsIn, e.nsOut = record.Namespace{DB: e.in.Name(), Coll: "in"}, record.Namespace{DB: e.out.Name(), Coll: "out"}
	e.name = e.out.Name()
	if c.Size == 0 {
		c.Size = 20_000_000
	}
	e.ensure(c)
	return e
}

func (e *streamEnds) ensure(c stream.Config) {
	e.t.Helper()
	if _, err := stream.Ensure(e.t.Context(), e.in, "in", c); err != nil {
		e.t.Fatal(err)
	}
}

// message makes the next message of src in capstan's layout.
func (e *streamEnds) message(src, subject string) bson.D {
	e.seqs[src]++
	d := bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "time", Value: time.Now().UnixMicro()}, {Key: "src", Value: src},
		{Key: "seq", Value: e.seqs[src]}, {Key: "ts", Value: bson.Timestamp{}}}
	if subject != "" {
		d = append(d, bson.E{Key: "subject", Value: subject})
	}
	return append(d, bson.E{Key: "data", Value: fmt.Sprintf("%s %d", src, e.seqs[src])})
}

// send writes n messages to the source, of the srcs in turn.
func (e *streamEnds) send(n int, srcs ...string) {
	e.t.Helper()
	var docs []bson.D
	for i := range n {
		docs = append(docs, e.message(srcs[i%len(srcs)], ""))
	}
	e.insert(docs)
}

func (e *streamEnds) insert(docs []bson.D) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), streamPatience)
	defer cancel()
	if _, err := e.in.Collection("in").InsertMany(ctx, docs); err != nil {
		e.t.Fatal(err)
	}
}

// route makes a route; it is closed with the test.
func (e *streamEnds) route(cfg mongodb.StreamRouteConfig) *replicator.StreamLink {
	e.t.Helper()
	if cfg.Route == "" {
		cfg.Route = e.name
	}
	cfg.Link.Logger = e.log
	if cfg.Link.SaveEvery == 0 {
		cfg.Link.SaveEvery = 100 * time.Millisecond
	}
	if cfg.Link.ClockEvery == 0 {
		cfg.Link.ClockEvery = 100 * time.Millisecond
	}
	link, end, err := mongodb.OpenStreamRoute(e.from.Options(), e.to.Options(), e.nsIn, e.nsOut, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := end(e.t.Context()); err != nil {
			e.t.Errorf("close the route: %v", err)
		}
	})
	return link
}

// runningStream is a route that runs.
type runningStream struct {
	t    *testing.T
	link *replicator.StreamLink
	end  context.CancelFunc
	once sync.Once
	done chan error
	err  error
}

func runStream(t *testing.T, link *replicator.StreamLink) *runningStream {
	ctx, cancel := context.WithCancel(t.Context())
	r := &runningStream{t: t, link: link, end: cancel, done: make(chan error, 1)}
	go func() { r.done <- link.Run(ctx) }()
	t.Cleanup(func() { cancel(); _ = r.wait() })
	return r
}

// wait returns what Run returned.
func (r *runningStream) wait() error {
	r.once.Do(func() {
		select {
		case r.err = <-r.done:
		case <-time.After(streamPatience):
			r.t.Errorf("Run does not end; status %+v", r.link.Status())
		}
	})
	return r.err
}

// stop ends the route, which must be well.
func (r *runningStream) stop() {
	r.t.Helper()
	r.end()
	if err := r.wait(); err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

// until polls until ok.
func (r *runningStream) until(what string, ok func(replicator.Status) bool) {
	r.t.Helper()
	for end := time.Now().Add(streamPatience); !ok(r.link.Status()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain: %s; status %+v", what, r.link.Status())
		}
	}
}

func (r *runningStream) live() {
	r.t.Helper()
	r.until("live", func(s replicator.Status) bool { return s.Phase == replicator.PhaseLive })
}

func (r *runningStream) applied(n int64) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d applied", n), func(s replicator.Status) bool { return s.Totals.Applied >= n })
}

// streamAll returns the documents of a stream in natural order, without the primer.
func streamAll(t *testing.T, db *mongo.Database, name string) []bson.Raw {
	t.Helper()
	cur, err := db.Collection(name).Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs, out []bson.Raw
	if err := cur.All(t.Context(), &docs); err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		if !record.IsPrimer(d) {
			out = append(out, d)
		}
	}
	return out
}

// withoutField returns doc without its field.
func withoutField(t *testing.T, doc bson.Raw, field string) string {
	t.Helper()
	elems, err := doc.Elements()
	if err != nil {
		t.Fatal(err)
	}
	var d bson.D
	for _, e := range elems {
		if e.Key() != field {
			d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// streamObserver sees every insert of the destination, also of what it evicts at once: nothing that was stored twice escapes it.
type streamObserver struct {
	t    *testing.T
	coll *mongo.Collection
	cs   *mongo.ChangeStream
	// next is the seq that is due per src; ids are those seen.
	last map[string]int64
	ids  map[record.ID]int
	n    int
	// holes counts the messages that are missing per src.
	holes map[string]int64
}

func observeStream(t *testing.T, db *mongo.Database, coll string) *streamObserver {
	t.Helper()
	o := &streamObserver{t: t, coll: db.Collection(coll), last: map[string]int64{}, ids: map[record.ID]int{}, holes: map[string]int64{}}
	o.open(nil)
	t.Cleanup(func() { _ = o.cs.Close(context.WithoutCancel(t.Context())) })
	return o
}

// open watches from token on, nil for now, through elections.
func (o *streamObserver) open(token bson.Raw) {
	o.t.Helper()
	opts := options.ChangeStream().SetMaxAwaitTime(100 * time.Millisecond)
	if token != nil {
		opts.SetResumeAfter(token)
	}
	for end := time.Now().Add(streamPatience); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(o.t.Context(), 5*time.Second) // the server may be frozen
		cs, err := o.coll.Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}, opts)
		cancel()
		if err == nil {
			o.cs = cs
			return
		}
		if time.Now().After(end) {
			o.t.Fatal(err)
		}
	}
}

// messages reads until n inserts were seen, and judges them: none twice, each src in order (I1, I4).
func (o *streamObserver) messages(n int) {
	o.t.Helper()
	for end := time.Now().Add(streamPatience); o.n < n; {
		if time.Now().After(end) {
			o.t.Fatalf("the destination got %d of %d messages: %v", o.n, n, o.last)
		}
		o.some()
	}
}

// some takes what the server has, at most one.
func (o *streamObserver) some() {
	ctx, cancel := context.WithTimeout(o.t.Context(), 5*time.Second)
	defer cancel()
	if !o.cs.TryNext(ctx) {
		if o.cs.Err() != nil { // the driver tries once
			token := o.cs.ResumeToken()
			_ = o.cs.Close(ctx)
			o.open(token)
		}
		return
	}
	doc, ok := o.cs.Current.Lookup("fullDocument").DocumentOK()
	if !ok || record.IsPrimer(doc) {
		return
	}
	r, err := record.Decode(doc, record.Interner{})
	if err != nil {
		o.t.Fatal(err)
	}
	o.n++
	if o.ids[r.Position.ID]++; o.ids[r.Position.ID] > 1 {
		o.t.Errorf("%s #%d (%s) was stored twice", r.Src, r.Seq, r.Position.ID)
	}
	if !r.Ours() {
		return
	}
	switch last := o.last[r.Src]; {
	case r.Seq <= last:
		o.t.Errorf("%s #%d came after #%d", r.Src, r.Seq, last)
	case r.Seq > last+1:
		o.holes[r.Src] += r.Seq - last - 1
	}
	o.last[r.Src] = max(o.last[r.Src], r.Seq)
}

// whole fails unless nothing is missing.
func (o *streamObserver) whole() {
	o.t.Helper()
	if len(o.holes) > 0 {
		o.t.Errorf("missing at the destination: %v", o.holes)
	}
}
