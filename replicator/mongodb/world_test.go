package mongodb_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// patience bounds what must happen.
const patience = 2 * time.Minute

// world is a source and a destination, two databases of one replica set, and the route between them.
type world struct {
	testing.TB
	set, to  *mongotest.Deployment
	src, dst *mongo.Database
	cfg      replicator.Config
	route    string
	// options change the options of the two sides, if set.
	options func(source, target *options.ClientOptions)
	states  replicator.Store // nil: at the destination
}

func newWorld(t testing.TB, cfg replicator.Config) *world {
	t.Helper()
	return newWorldOn(t, mongotest.ReplicaSet(t), cfg)
}

func newWorldOn(t testing.TB, set *mongotest.Deployment, cfg replicator.Config) *world {
	t.Helper()
	return newWorldBetween(t, set, set, cfg)
}

func newWorldBetween(t testing.TB, from, to *mongotest.Deployment, cfg replicator.Config) *world {
	t.Helper()
	w := &world{TB: t, set: from, to: to, src: from.DB(t), dst: to.DB(t), cfg: cfg}
	w.route = w.src.Name()
	w.cfg.Scope.Include = append(w.cfg.Scope.Include, w.src.Name())
	w.cfg.Scope.Rename = append(w.cfg.Scope.Rename, scope.Rename{From: w.src.Name() + ".*", To: w.dst.Name() + ".*"})
	w.cfg.SaveEvery = 100 * time.Millisecond
	w.cfg.ClockEvery = 100 * time.Millisecond
	return w
}

// running is a route that runs.
type runningLink struct {
	*replicator.Link
	w    *world
	end  func() error // stops it and returns what Run did
	done chan struct{}
	err  error
}

func (w *world) open() *mongodb.Route {
	w.Helper()
	source, target := w.set.Options(), w.to.Options()
	if w.options != nil {
		w.options(source, target)
	}
	r, err := mongodb.OpenRoute(source, target, w.route, w.cfg, mongodb.RouteConfig{Store: mongodb.StoreConfig{Lease: 3 * time.Second}, States: w.states})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = r.Close(context.Background()) })
	return r
}

func (w *world) start() *runningLink {
	w.Helper()
	route := w.open()
	ctx, cancel := context.WithCancel(w.Context())
	r := &runningLink{Link: route.Link, w: w, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = route.Link.Run(ctx)
	}()
	r.end = func() error { cancel(); <-r.done; return r.err }
	w.Cleanup(func() { _ = r.end() })
	return r
}

// await polls until ok.
func (w *world) await(what string, ok func() bool) {
	w.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			w.Fatalf("not within %v: %s", patience, what)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.Context().Done():
			w.Fatal(w.Context().Err())
		}
	}
}

func (r *runningLink) phase(p replicator.Phase) {
	r.w.Helper()
	r.w.await("phase "+string(p), func() bool {
		s := r.Status()
		select {
		case <-r.done:
			if s.Phase != p {
				r.w.Fatalf("the route ended in phase %s: %v", s.Phase, r.err)
			}
		default:
		}
		return s.Phase == p
	})
}

func (w *world) run(db *mongo.Database, cmd bson.D) {
	w.Helper()
	if err := db.RunCommand(w.Context(), cmd).Err(); err != nil {
		w.Fatalf("%v: %v", cmd, err)
	}
}

func (w *world) insert(coll string, docs ...any) {
	w.Helper()
	if _, err := w.src.Collection(coll).InsertMany(w.Context(), docs); err != nil {
		w.Fatal(err)
	}
}

func allOf(ctx context.Context, c *mongo.Collection, natural bool) ([]bson.Raw, error) {
	o := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})
	if natural {
		o = options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}})
	}
	cur, err := c.Find(ctx, bson.D{}, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(ctx) }()
	var docs []bson.Raw
	for cur.Next(ctx) {
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
	}
	return docs, cur.Err()
}

// difference returns "" if both sides of a collection have the same documents, byte for byte, else what differs first.
func (w *world) difference(coll string, keep func(bson.Raw) bool) string {
	w.Helper()
	a, err := allOf(w.Context(), w.src.Collection(coll), false)
	if err != nil {
		w.Fatal(err)
	}
	b, err := allOf(w.Context(), w.dst.Collection(coll), false)
	if err != nil {
		w.Fatal(err)
	}
	if keep != nil {
		kept := a[:0]
		for _, doc := range a {
			if keep(doc) {
				kept = append(kept, doc)
			}
		}
		a = kept
	}
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return fmt.Sprintf("%s: %d and %d documents; the destination alone has %s", coll, len(a), len(b), brief(b[i]))
		case i >= len(b):
			return fmt.Sprintf("%s: %d and %d documents; the source alone has %s", coll, len(a), len(b), brief(a[i]))
		case !bytes.Equal(a[i], b[i]):
			return fmt.Sprintf("%s: source %s, destination %s", coll, brief(a[i]), brief(b[i]))
		}
	}
	return ""
}

// brief shows a document, or of a large one its size.
func brief(doc bson.Raw) string {
	if len(doc) > 10_000 {
		return fmt.Sprintf("a document of %d bytes", len(doc))
	}
	return doc.String()
}

// equal waits until both sides of collections are equal.
func (w *world) equal(colls ...string) {
	w.Helper()
	for _, c := range colls {
		d := ""
		deadline := time.Now().Add(patience)
		for d = w.difference(c, nil); d != "" && time.Now().Before(deadline); d = w.difference(c, nil) {
			<-time.After(20 * time.Millisecond)
		}
		if d != "" {
			w.Fatalf("not equal: %s", d)
		}
	}
}

func (w *world) names(db *mongo.Database) string {
	w.Helper()
	names, err := db.ListCollectionNames(w.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$not", Value: bson.Regex{Pattern: "^system"}}}}})
	if err != nil {
		w.Fatal(err)
	}
	return strings.Join(names, " ")
}

func d(pairs ...any) bson.D {
	doc := bson.D{}
	for i := 0; i+1 < len(pairs); i += 2 {
		doc = append(doc, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return doc
}

func many(from, to int, extra ...any) []any {
	var docs []any
	for i := from; i < to; i++ {
		docs = append(docs, append(d("_id", int64(i), "n", int32(i%7)), d(extra...)...))
	}
	return docs
}

func sorted(names string) string {
	list := strings.Fields(names)
	for i := range list {
		for j := i + 1; j < len(list); j++ {
			if list[j] < list[i] {
				list[i], list[j] = list[j], list[i]
			}
		}
	}
	return strings.Join(list, " ")
}

// ttl returns expireAfterSeconds of the index "ttl" at the destination.
func (w *world) ttl(coll string) int64 {
	w.Helper()
	specs, err := w.dst.Collection(coll).Indexes().List(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = specs.Close(w.Context()) }()
	for specs.Next(w.Context()) {
		if v, err := specs.Current.LookupErr("expireAfterSeconds"); err == nil {
			n, _ := v.AsInt64OK()
			return n
		}
	}
	return -1
}
