package failover

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// plugged returns a layer that reaches every member of d through a proxy of its own, and takes all of them for
// equally near.
func plugged(t *testing.T, d *mongotest.Deployment, c Config, app string) (*Layer, *faultnet.Switchboard) {
	t.Helper()
	var addrs []string
	for _, m := range d.Cluster.Members() {
		addrs = append(addrs, m.Addr)
	}
	b, err := faultnet.Connect(t.Context(), addrs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l, err := New(d.Options().SetDialer(b).SetAppName(app).SetLocalThreshold(time.Minute), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	return l, b
}

func addrOf(t *testing.T, d *mongotest.Deployment, role string) string {
	t.Helper()
	for _, m := range d.Cluster.Status(t.Context()) {
		if m.Role == role {
			return m.Addr
		}
	}
	t.Fatalf("no %s", role)
	return ""
}

// attempts collects what OnAttempt is told.
type attempts struct {
	mu  sync.Mutex
	all []Attempt
}

func (a *attempts) add(x Attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, x)
}

// drain returns what came since the last call.
func (a *attempts) drain() []Attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// stuck makes one member answer no find of clients with the name app, while it answers its monitors: as one does
// whose disk is stuck. (A black hole is noticed by the monitor after a second or so, with or without avoidance.)
func stuck(t *testing.T, addr, app string) (heal func()) {
	t.Helper()
	c, err := mongo.Connect(options.Client().SetHosts([]string{addr}).SetDirect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.WithoutCancel(t.Context())) })
	set := func(mode string) {
		t.Helper()
		cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}, {Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"find"}}, {Key: "appName", Value: app}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 3000}}}}
		if err := c.Database("admin").RunCommand(context.WithoutCancel(t.Context()), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("alwaysOn")
	return func() { set("off") }
}

// readFor reads again and again for a while, and returns by how much the slowest call exceeded the time of one
// attempt, and by how much a timer of this process was late meanwhile.
func readFor(t *testing.T, while, attempt time.Duration, read func() error) (over, late time.Duration) {
	t.Helper()
	_, late = overrun(while, func() {
		for begun := time.Now(); time.Since(begun) < while; {
			start := time.Now()
			if err := read(); err != nil {
				t.Error(err)
				return
			}
			over = max(over, time.Since(start)-attempt)
		}
	})
	return over, late
}

// A silent secondary costs two failed attempts at most; afterwards every read of every preference that
// allows another member is answered by one. No call is late (I8).
func TestASilentSecondaryIsAvoided(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	db := d.DB(t)
	for _, how := range []string{"black hole", "stuck"} {
		for _, mode := range []*readpref.ReadPref{readpref.SecondaryPreferred(), readpref.Secondary(), readpref.Nearest()} {
			name := how + ", " + mode.Mode().String()
			t.Run(name, func(t *testing.T) {
				var seen attempts
				const timeout = 500 * time.Millisecond
				l, b := plugged(t, d, Config{AttemptTimeout: timeout, Hooks: Hooks{OnAttempt: seen.add}}, name)
				w := l.Collection(db.Name(), "c", CollectionConfig{})
				if err := w.InsertOne(t.Context(), item(1)); err != nil {
					t.Fatal(err)
				}
				read := func() (err error) {
					_, err = l.Find(t.Context(), db.Name(), "c", ReadConfig{Preference: mode}, bson.D{})
					return err
				}
				silent := addrOf(t, d, localcluster.RoleSecondary)
				for met := false; !met; { // a connection to it is in use
					if err := read(); err != nil {
						t.Fatal(err)
					}
					for _, a := range seen.drain() {
						met = met || a.Member == silent
					}
				}
				if how == "stuck" {
					defer stuck(t, silent, name)()
				} else {
					b.To(silent).BlackHole()
					defer b.Heal()
				}
				over, late := readFor(t, 4*time.Second, timeout, read)
				failed, all := 0, seen.drain()
				for _, a := range all {
					if a.Err != nil {
						failed++
						if a.Member != silent && late < timeout/10 { // on a machine that is late itself, anybody may be
							t.Errorf("an attempt at %s failed: %v", a.Member, a.Err)
						}
						if a.Took > timeout+slack+2*late {
							t.Errorf("an attempt took %v", a.Took)
						}
					}
				}
				if failed > 2 || failed == 0 {
					t.Errorf("%d of %d attempts failed, want one or two", failed, len(all))
				}
				if limit := time.Duration(failed) * timeout; over > limit+slack+2*late {
					t.Errorf("a call took %v more than one attempt, with %d failed ones", over, failed)
				}
			})
		}
	}
}

// While the primary is silent and no other is elected, primaryPreferred goes to a secondary after one attempt.
// Primary reads wait for it, and so do writes where it takes none.
func TestPrimaryPreferredFallsBackWhileThePrimaryIsSilent(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	db := d.DB(t)
	for _, how := range []string{"stuck", "black hole"} {
		t.Run(how, func(t *testing.T) {
			var seen attempts
			l, b := plugged(t, d, Config{AttemptTimeout: 500 * time.Millisecond, Budget: 2 * time.Second, Hooks: Hooks{OnAttempt: seen.add}}, how)
			w := l.Collection(db.Name(), "c", CollectionConfig{})
			if err := w.InsertOne(t.Context(), item(1)); err != nil {
				t.Fatal(err)
			}
			primary := addrOf(t, d, localcluster.RolePrimary)
			heal := b.Heal
			if how == "stuck" {
				heal = stuck(t, primary, how)
			} else {
				b.To(primary).BlackHole()
			}
			seen.drain()
			failed := 0
			for range 20 {
				if _, err := l.Find(t.Context(), db.Name(), "c", ReadConfig{Preference: readpref.PrimaryPreferred()}, bson.D{}); err != nil {
					t.Fatal(err)
				}
				for _, a := range seen.drain() {
					if a.Err != nil {
						failed++
					} else if a.Member == primary {
						t.Error("a silent member answered")
					}
				}
			}
			if failed > 2 || failed == 0 {
				t.Errorf("%d attempts failed, want one or two", failed)
			}
			if err := w.InsertOne(t.Context(), item(2)); (err == nil) != (how == "stuck") {
				t.Errorf("a write: %v", err)
			}
			if _, err := l.FindOne(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{}); !errors.Is(err, errBudget) {
				t.Errorf("a read of the primary: %v", err)
			}
			heal()
			for begun := time.Now(); ; {
				_, err := l.FindOne(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{})
				if err == nil {
					break
				}
				if time.Since(begun) > time.Minute {
					t.Fatalf("after it healed: %v", err)
				}
			}
		})
	}
}

// secondaryPreferred readers go on during an election: no call fails, none is late.
func TestSecondaryPreferredReadersGoOnDuringAnElection(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	db := d.DB(t)
	const timeout = 500 * time.Millisecond
	l, err := New(d.Options(), Config{AttemptTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	if err := l.Collection(db.Name(), "c", CollectionConfig{}).InsertOne(t.Context(), item(1)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			// One attempt may be lost: with the member that was killed, or one that is just becoming primary.
			over, late := readFor(t, time.Second, timeout, func() error {
				_, err := l.Find(t.Context(), db.Name(), "c", ReadConfig{Preference: readpref.SecondaryPreferred()}, bson.D{})
				return err
			})
			if over > timeout+slack+2*late {
				t.Errorf("a read took %v more than one attempt", over)
			}
		}
	}()
	m, err := d.Cluster.Kill(t.Context(), "primary")
	if err != nil {
		t.Error(err)
	}
	s := &stream{t: t, coll: db.Collection("c")}
	s.elected()
	if _, err := d.Cluster.Start(t.Context(), m.Name); err != nil {
		t.Error(err)
	}
	close(stop)
	<-done
}

// A read that will fail again is not repeated; one of the caller's own errors ends it as it is.
func TestReadsThatCannotSucceedEndAtOnce(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	db := d.DB(t)
	var seen attempts
	l, err := New(d.Options(), Config{Hooks: Hooks{OnAttempt: seen.add}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	if _, err := l.FindOne(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{}); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Error(err)
	}
	if docs, err := l.Find(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{}); err != nil || len(docs) != 0 {
		t.Error(docs, err)
	}
	if _, err := l.Find(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{{Key: "$no", Value: 1}}); mongoerr.Classify(err).Code != 2 {
		t.Error(err)
	}
	own := errors.New("not what I wanted")
	if err := l.Read(t.Context(), db.Name(), ReadConfig{Name: "look"}, func(context.Context, *mongo.Database) error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
	all := seen.drain()
	if len(all) != 4 {
		t.Errorf("%d attempts, want 4", len(all))
	}
	if a := all[0]; a.Kind != KindRead || a.Name != db.Name()+".c" || a.Member == "" || all[3].Name != "look" {
		t.Errorf("%+v", a)
	}
}

// A member is avoided for its time, and no longer than until it answers.
func TestAvoidanceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a avoided
		a.add("a:1")
		a.add("b:1")
		time.Sleep(avoidFor - time.Second)
		if !a.has("a:1") || a.has("c:1") {
			t.Error("it ends too early, or spreads")
		}
		a.forget("a:1")
		if a.has("a:1") || !a.has("b:1") {
			t.Error("forget")
		}
		known := func(kind string) event.TopologyDescription {
			return event.TopologyDescription{Servers: []event.ServerDescription{{Addr: address.Address("b:1"), Kind: kind}}}
		}
		a.back(&event.TopologyDescriptionChangedEvent{PreviousDescription: known("RSSecondary"), NewDescription: known("RSSecondary")})
		if !a.has("b:1") {
			t.Error("a member that was not lost came back")
		}
		a.back(&event.TopologyDescriptionChangedEvent{PreviousDescription: known("Unknown"), NewDescription: known("RSSecondary")})
		if a.has("b:1") {
			t.Error("a member that came back is avoided")
		}
		a.add("a:1")
		time.Sleep(avoidFor)
		if a.has("a:1") || a.count.Load() != 0 {
			t.Error("it does not end")
		}
	})
}

// A step runs until it succeeds; the caller's errors end it unless they ask for another attempt.
func TestStepsAreRepeatedUntilTheyAreDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen attempts
		l, err := New(nil, Config{Budget: time.Minute, Hooks: Hooks{OnAttempt: seen.add}})
		if err != nil {
			t.Fatal(err)
		}
		own := errors.New("mine")
		for name, tt := range map[string]struct {
			errs []error
			want error
			runs int
		}{
			"at once":               {[]error{nil}, nil, 1},
			"after lost answers":    {[]error{errLost, errLost, mongo.CommandError{Code: 189}, nil}, nil, 4},
			"a race with another":   {[]error{mongo.CommandError{Code: 11000}, nil}, nil, 2},
			"the caller's":          {[]error{own}, own, 1},
			"the caller's, again":   {[]error{errLost, againError{own}, nil}, nil, 3},
			"not authorised":        {[]error{errLost, mongo.CommandError{Code: 13}}, mongo.CommandError{Code: 13}, 2},
			"an unknown code":       {[]error{mongo.CommandError{Code: 8}}, mongo.CommandError{Code: 8}, 1},
			"until the budget ends": {[]error{errLost}, errBudget, 0},
		} {
			runs := 0
			err := l.Do(t.Context(), "step", func(ctx context.Context) error {
				if _, ok := ctx.Deadline(); !ok {
					t.Error("no deadline")
				}
				err := tt.errs[min(runs, len(tt.errs)-1)]
				runs++
				return err
			})
			if tt.want == nil && err != nil || tt.want != nil && !errors.Is(err, tt.want) && mongoerr.Classify(err).Code != mongoerr.Classify(tt.want).Code || tt.runs > 0 && runs != tt.runs {
				t.Errorf("%s: %v after %d runs", name, err, runs)
			}
			if all := seen.drain(); len(all) != runs || all[0].Kind != KindStep || all[0].Name != "step" {
				t.Errorf("%s: %+v", name, all)
			}
		}
		if err := l.DoRead(t.Context(), "look", func(context.Context) error { return mongo.CommandError{Code: 11000} }); err == nil {
			t.Error("a duplicate key does not end a read")
		}
	})
}

type againError struct{ error }

func (againError) TryAgain() bool { return true }
