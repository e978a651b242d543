package mongodb_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// cutter is a dialer whose connections to one address can be cut.
type cutter struct {
	mu    sync.Mutex
	cut   string
	conns map[net.Conn]string
}

func (c *cutter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if address == c.cut {
		_ = conn.Close()
		return nil, errors.New("the cable is cut")
	}
	c.conns[conn] = address
	return conn, nil
}

// set cuts an address off; "" heals.
func (c *cutter) set(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = address
	for conn, to := range c.conns {
		if to == address {
			_ = conn.Close()
			delete(c.conns, conn)
		}
	}
}

// side is one of the two sets of a test that breaks both.
type side struct {
	dep *mongotest.Deployment
	cut *cutter
}

// fault breaks the primary for a while, and mends it.
func (s side) fault(ctx context.Context, name string) error {
	c := s.dep.Cluster
	if err := c.AwaitHealthy(ctx); err != nil {
		return err
	}
	var m localcluster.Member
	var err error
	last := func() { // longer than an election takes
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
	switch name {
	case "stepdown":
		_, err = c.StepDown(ctx, "primary")
		last()
	case "kill":
		if m, err = c.Kill(ctx, "primary"); err == nil {
			last()
			_, err = c.Start(ctx, m.Name)
		}
	case "freeze":
		if m, err = c.Freeze(ctx, "primary"); err == nil {
			last()
			_, err = c.Thaw(ctx, m.Name)
		}
	case "cut":
		for _, one := range c.Status(ctx) {
			if one.Role == localcluster.RolePrimary {
				s.cut.set(one.Addr)
			}
		}
		last()
		s.cut.set("")
	case "restart":
		for _, one := range c.Members() {
			if _, serr := c.Stop(ctx, one.Name); serr != nil {
				err = serr
			}
		}
		for _, one := range c.Members() {
			if _, serr := c.Start(ctx, one.Name); serr != nil {
				err = serr
			}
		}
	}
	return err
}

// TestARouteGoesOnThroughFaultsOfBothSides (trap 3.24): kill, freeze, stepdown and cut of both primaries in the middle of the copy, and again, with a
// restart of all servers, while it is live, under a writer. Both sides are equal in the end.
func TestARouteGoesOnThroughFaultsOfBothSides(t *testing.T) {
	t.Parallel()
	sides := make([]side, 2)
	for i := range sides {
		sides[i] = side{mongotest.Own(t, localcluster.Config{Members: 3}), &cutter{conns: make(map[net.Conn]string)}}
	}
	w := newWorldBetween(t, sides[0].dep, sides[1].dep, replicator.Config{Window: 20, Readers: 2})
	w.options = func(source, target *options.ClientOptions) {
		source.SetDialer(sides[0].cut)
		target.SetDialer(sides[1].cut)
	}
	w.run(w.src, d("createIndexes", "a", "indexes", bson.A{d("key", d("u", 1), "name", "u", "unique", true, "sparse", true)}))
	w.insert("a", many(0, 2000)...)
	// In the middle of the copy: the next window waits for the beginning of the next fault.
	faults, begun := []string{"kill", "freeze", "stepdown", "cut"}, make(chan struct{})
	var windows atomic.Int64
	w.cfg.Hooks.OnCopied = func(int64, int64, int64) {
		if windows.Add(1)%20 == 10 {
			select {
			case <-begun:
			case <-time.After(10 * time.Second):
			}
		}
	}
	stop, written := make(chan struct{}), make(chan struct{})
	go func() { defer close(written); w.scribble(stop) }()
	r := w.start()
	w.await("the copy has begun", func() bool { return windows.Load() > 0 })
	both := func(name string) {
		group, ctx := errgroup.WithContext(t.Context())
		for _, s := range sides {
			group.Go(func() error { return s.fault(ctx, name) })
		}
		if err := group.Wait(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, name := range faults {
		select {
		case begun <- struct{}{}:
		default:
		}
		both(name)
	}
	close(begun)
	r.phase(replicator.PhaseLive)
	for _, name := range append(faults, "restart") {
		both(name)
	}
	close(stop)
	<-written
	w.equal("a")
	r.phase(replicator.PhaseLive)
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
	must(t, r.end())
}

// scribble writes to the source until stop is closed. Errors are the faults'.
func (w *world) scribble(stop <-chan struct{}) {
	c := w.src.Collection("a")
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-w.Context().Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		id := int64(i*7) % 2200
		switch i % 6 {
		case 0:
			_, _ = c.InsertOne(ctx, d("_id", id, "again", i))
		case 1:
			_, _ = c.DeleteOne(ctx, d("_id", id))
		case 2:
			_, _ = c.UpdateOne(ctx, d("_id", id), d("$set", d("u", i%50)))
		case 3:
			_, _ = c.UpdateOne(ctx, d("_id", id), d("$push", d("arr", d("$each", bson.A{i}, "$slice", -3))))
		case 4:
			_, _ = c.UpdateOne(ctx, d("u", i%50), d("$unset", d("u", 1)))
		default:
			_, _ = c.UpdateMany(ctx, d("n", i%7, "_id", d("$lt", 100)), mongo.Pipeline{d("$set", d("z", i, "b", "$n"))})
		}
		cancel()
	}
}

// TestAFrozenDestinationDelaysNoOther is I6 for a fan-out: two links from one source, one of their destinations is frozen.
func TestAFrozenDestinationDelaysNoOther(t *testing.T) {
	t.Parallel()
	frozen := mongotest.Own(t, localcluster.Config{Members: 1, Set: "frozen"})
	fast := newWorld(t, replicator.Config{})
	slow := newWorldBetween(t, fast.set, frozen, replicator.Config{})
	slow.src, slow.route = fast.src, fast.route+"/slow"
	slow.cfg.Scope = scope.Config{Include: fast.cfg.Scope.Include, Rename: []scope.Rename{{From: fast.src.Name() + ".*", To: slow.dst.Name() + ".*"}}}
	fast.insert("a", many(0, 500)...)
	a, b := fast.start(), slow.start()
	a.phase(replicator.PhaseLive)
	b.phase(replicator.PhaseLive)
	m, err := frozen.Cluster.Freeze(t.Context(), "primary")
	must(t, err)
	for i := range 30 {
		id := 1000 + i
		fast.insert("a", d("_id", id))
		fast.await("the other destination has it", func() bool { return fast.dst.Collection("a").FindOne(t.Context(), d("_id", id)).Err() == nil })
	}
	// More than the frozen one's queue holds.
	for i := range 10 {
		fast.insert("a", many(10_000+2000*i, 12_000+2000*i)...)
	}
	fast.equal("a")
	fast.await("no lag", func() bool { s := a.Status(); return s.LagSeconds != nil && *s.LagSeconds <= 1 })
	if s := b.Status(); s.Applied == a.Status().Applied {
		t.Errorf("the frozen destination has everything: %+v", s)
	}
	_, err = frozen.Cluster.Thaw(t.Context(), m.Name)
	must(t, err)
	slow.equal("a")
}

// TestAChainOfRoutes replicates what only receives replicated data, and reads from secondaries.
func TestAChainOfRoutes(t *testing.T) {
	t.Parallel()
	first := newWorld(t, replicator.Config{})
	first.options = func(source, _ *options.ClientOptions) { source.SetReadPreference(readpref.Secondary()) }
	second := newWorld(t, replicator.Config{})
	second.src = first.dst
	second.cfg.Scope = scope.Config{Include: []string{first.dst.Name()}, Rename: []scope.Rename{{From: first.dst.Name() + ".*", To: second.dst.Name() + ".*"}}}
	first.insert("a", many(0, 200)...)
	a := first.start()
	a.phase(replicator.PhaseLive)
	b := second.start()
	b.phase(replicator.PhaseLive)
	for i := range 5 {
		first.insert("a", many(1000+10*i, 1010+10*i)...)
		first.update("a", i, d("$set", d("z", i, "a", 1)))
		_, err := first.src.Collection("a").DeleteOne(t.Context(), d("_id", 50+i))
		must(t, err)
	}
	first.rename("a", "b", false)
	first.insert("a", d("_id", "new"))
	first.equal("a", "b")
	second.equal("a", "b")
	first.await("the same at the end", func() bool { return sorted(first.names(first.src)) == sorted(second.names(second.dst)) })
}

// TestAValidatorOfTheDestinationIsBypassed where the user may do that: what the source has is right.
func TestAValidatorOfTheDestinationIsBypassed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.run(w.dst, d("create", "a", "validator", d("good", true)))
	w.insert("a", many(0, 10)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.insert("a", many(10, 20)...)
	w.update("a", 3, d("$set", d("x", 1)))
	w.equal("a")
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestMissingRightsAtTheDestinationAreSaid: what a user may not write ends the route, with what to grant; what a validator refuses, where it may not be
// bypassed, is a dead letter.
func TestMissingRightsAtTheDestinationAreSaid(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 1, Set: "rights", Auth: true})
	w := newWorldBetween(t, mongotest.ReplicaSet(t), dep, replicator.Config{})
	admin := w.dst.Client().Database("admin")
	w.run(admin, d("createUser", "few", "pwd", "few", "roles", bson.A{d("role", "read", "db", w.dst.Name()), d("role", "readWrite", "db", scope.Own)}))
	w.options = func(_, target *options.ClientOptions) {
		target.SetAuth(options.Credential{Username: "few", Password: "few"})
	}
	w.insert("a", many(0, 10)...)
	r := w.start()
	<-r.done
	if failed := (*replicator.FailedError)(nil); !errors.As(r.err, &failed) || !strings.Contains(r.err.Error(), "readWrite") || !strings.Contains(r.err.Error(), w.dst.Name()) {
		t.Errorf("got %v", r.err)
	}
	w.run(admin, d("grantRolesToUser", "few", "roles", bson.A{d("role", "readWrite", "db", w.dst.Name()), d("role", "dbAdmin", "db", w.dst.Name())}))
	r = w.start() // it goes on where it failed
	r.phase(replicator.PhaseLive)
	w.run(w.dst, d("collMod", "a", "validator", d("bad", d("$exists", false))))
	w.insert("a", d("_id", "x", "bad", 1), d("_id", "y"))
	w.await("the rest goes on", func() bool { return w.dst.Collection("a").FindOne(t.Context(), d("_id", "y")).Err() == nil })
	w.await("a dead letter or the document", func() bool {
		return r.Status().Letters == 1 || w.dst.Collection("a").FindOne(t.Context(), d("_id", "x")).Err() == nil
	})
	w.run(w.dst, d("collMod", "a", "validator", d()))
	_, left, err := r.Retry(t.Context())
	must(t, err)
	if left != 0 {
		t.Errorf("%d dead letters", left)
	}
	w.equal("a")
}

// TestASourceThatCannotBeOne ends the route with what to do, before anything is written.
func TestASourceThatCannotBeOne(t *testing.T) {
	t.Parallel()
	w := newWorldBetween(t, mongotest.Standalone(t), mongotest.ReplicaSet(t), replicator.Config{})
	w.insert("a", many(0, 10)...)
	r := w.start()
	<-r.done
	if failed := (*replicator.FailedError)(nil); !errors.As(r.err, &failed) || !errors.Is(r.err, mongodb.ErrNotReplicaSet) || !strings.Contains(r.err.Error(), "rs.initiate()") {
		t.Errorf("a standalone server: %v", r.err)
	}
	loop := newWorld(t, replicator.Config{})
	loop.cfg.Scope.Rename = nil
	loop.insert("a", many(0, 10)...)
	r = loop.start()
	<-r.done
	if !errors.Is(r.err, replicator.ErrLoop) || !strings.Contains(r.err.Error(), loop.src.Name()+".a") {
		t.Errorf("onto itself: %v", r.err)
	}
	if w.names(w.dst) != "" {
		t.Error("something was written")
	}
}

// TestRoutesThatOverlapAreRefusedUnlessDeclared: also when the collection appears later.
func TestRoutesThatOverlapAreRefusedUnlessDeclared(t *testing.T) {
	t.Parallel()
	first, second := newWorld(t, replicator.Config{}), newWorld(t, replicator.Config{})
	second.dst = first.dst
	second.cfg.Scope.Rename = []scope.Rename{{From: second.src.Name() + ".*", To: first.dst.Name() + ".*"}}
	first.insert("a", many(0, 10)...)
	second.insert("b", many(100, 110)...)
	a, b := first.start(), second.start()
	a.phase(replicator.PhaseLive)
	b.phase(replicator.PhaseLive)
	second.insert("a", many(200, 210)...)
	<-b.done
	if !errors.Is(b.err, replicator.ErrOverlap) || !strings.Contains(b.err.Error(), first.route) {
		t.Errorf("a collection of another route: %v", b.err)
	}
	must(t, a.end())
	first.cfg.Shared, second.cfg.Shared = true, true
	a = first.start()
	a.phase(replicator.PhaseLive)
	b = second.start()
	second.insert("a", many(210, 220)...)
	has := func(n int64) func() bool {
		return func() bool {
			got, err := first.dst.Collection("a").CountDocuments(t.Context(), d())
			return err == nil && got == n
		}
	}
	first.await("the documents of both", has(30))
	b.phase(replicator.PhaseLive)
	must(t, b.Resync(t.Context()))
	b.phase(replicator.PhaseLive)
	second.run(second.src, d("drop", "a"))
	second.insert("end", d("_id", 1))
	second.equal("end")
	if !has(30)() {
		t.Error("a resync, or a drop, of one route has removed what the other wrote")
	}
	if a.Status().Letters+b.Status().Letters != 0 {
		t.Error("dead letters")
	}
}
