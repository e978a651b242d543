package wire_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// world is a client with a Dialer, and an empty collection of a real server's.
type world struct {
	t      *testing.T
	dialer *wire.Dialer
	coll   *mongo.Collection
	sent   atomic.Int64 // inserts that the driver knows of
}

func open(t *testing.T, edit func(*options.ClientOptions)) *world {
	t.Helper()
	d := mongotest.Standalone(t)
	w := &world{t: t, dialer: wire.NewDialer(nil)}
	o := d.Options().SetDialer(w.dialer).SetRetryWrites(false).SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "insert" {
			w.sent.Add(1)
		}
	}})
	if edit != nil {
		edit(o)
	}
	client, err := mongo.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Errorf("a connection did not come back: %v", err)
		}
	})
	w.coll = client.Database(d.DB(t).Name()).Collection("c")
	return w
}

// openBehind is open with a proxy in front of the server.
func openBehind(t *testing.T) (*world, *faultnet.Proxy) {
	t.Helper()
	p, err := faultnet.Listen(t.Context(), mongotest.Standalone(t).Cluster.Members()[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return open(t, func(o *options.ClientOptions) { o.ApplyURI("mongodb://" + p.Addr() + "/?directConnection=true") }), p
}

// elements are those of an insert of documents with the given _ids, but for its end.
func (w *world) elements(ids ...int) []byte {
	e := bsoncore.AppendStringElement(nil, "insert", w.coll.Name())
	at, e := bsoncore.AppendArrayElementStart(e, "documents")
	for i, id := range ids {
		e = bsoncore.AppendDocumentElement(e, fmt.Sprint(i), bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).Build())
	}
	e, _ = bsoncore.AppendArrayEnd(e, at)
	return e
}

// clean accepts inserts of at least one document, without a word of doubt.
func clean(reply bson.Raw) bool {
	ok := true
	return wire.Each(reply, func(key []byte, _ bsoncore.Value) { ok = ok && string(key) != "writeErrors" && string(key) != "errmsg" }) && ok
}

func (w *world) hold(ctx context.Context, ids ...int) (*wire.Line, wire.Outcome) {
	w.t.Helper()
	return w.dialer.Hold(ctx, clean, func(ctx context.Context, token string) (bson.Raw, error) {
		at, cmd := bsoncore.AppendDocumentStart(nil)
		cmd = bsoncore.AppendStringElement(append(cmd, w.elements(ids...)...), "comment", token)
		cmd, _ = bsoncore.AppendDocumentEnd(cmd, at)
		return w.coll.Database().RunCommand(ctx, bson.Raw(cmd)).Raw()
	})
}

func (w *world) line(ids ...int) *wire.Line {
	w.t.Helper()
	l, out := w.hold(w.t.Context(), ids...)
	if out.Err != nil || l == nil {
		w.t.Fatalf("no line, error %v", out.Err)
	}
	return l
}

func (w *world) count() int64 {
	w.t.Helper()
	n, err := w.coll.CountDocuments(w.t.Context(), bson.D{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func soon() time.Time { return time.Now().Add(20 * time.Second) }

func TestOneCommandOfTheDriversCarriesMany(t *testing.T) {
	t.Parallel()
	for _, short := range []bool{false, true} {
		t.Run(fmt.Sprint("short=", short), func(t *testing.T) {
			t.Parallel()
			w := open(t, nil)
			l := w.line(0)
			l.Short = short
			for i := 1; i <= 100; i++ {
				ctx, cancel := context.WithCancel(t.Context())
				if !short {
					ctx = t.Context()
				}
				reply, err := l.Do(ctx, soon(), w.elements(i))
				cancel() // of a Short line's command that has been answered: nothing happens
				if n, _ := reply.Lookup("n").AsInt64OK(); err != nil || n != 1 {
					t.Fatalf("insert %d: reply %v, error %v", i, reply, err)
				}
			}
			if n := w.count(); n != 101 || w.sent.Load() != 1 {
				t.Errorf("%d documents, %d inserts that the driver knows of; want 101 by 1", n, w.sent.Load())
			}
			l.Release()
			l.Release() // again: nothing
			if _, err := l.Do(t.Context(), soon(), w.elements(1000)); !errors.Is(err, wire.ErrReleased) || w.count() != 101 {
				t.Errorf("Do after Release: error %v, %d documents", err, w.count())
			}
			// The connection is the driver's again, in order.
			for i := range 50 {
				if _, err := w.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2000 + i}}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestAnErrorOfTheServersIsTheDrivers(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	l := w.line(1, 2)
	_, err := l.Do(t.Context(), soon(), w.elements(2))
	if !mongo.IsDuplicateKeyError(err) {
		t.Errorf("error %v (%T), want the driver's for a duplicate key", err, err)
	}
	if _, err := l.Do(t.Context(), soon(), w.elements(3)); !errors.Is(err, wire.ErrReleased) {
		t.Errorf("after an error: %v, want the line to have ended", err)
	}
	l.Release()
	// As the first command: there is no line then.
	if l, out := w.hold(t.Context(), 1); l != nil || !mongo.IsDuplicateKeyError(out.Err) {
		t.Errorf("held %v, error %v", l != nil, out.Err)
	}
	l = w.line(4)
	defer l.Release()
	if _, err := l.Do(t.Context(), soon(), bsoncore.AppendInt32Element(nil, "nonsense", 1)); err == nil {
		t.Error("an unknown command gives no error")
	} else if e, ok := errors.AsType[mongo.CommandError](err); !ok || e.Code != 59 {
		t.Errorf("error %v (%T), want CommandNotFound", err, err)
	}
}

// The server is silent: every call returns by its deadline or with its context, and the client goes on.
func TestASilentServerEndsACallInTime(t *testing.T) {
	t.Parallel()
	for _, short := range []bool{false, true} {
		for name, end := range map[string]func(*testing.T) (context.Context, time.Time, error){
			"limit": func(t *testing.T) (context.Context, time.Time, error) {
				return t.Context(), time.Now().Add(300 * time.Millisecond), context.DeadlineExceeded
			},
			"context": func(t *testing.T) (context.Context, time.Time, error) {
				cause := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
				return ctx, soon(), cause
			},
		} {
			t.Run(fmt.Sprintf("%s short=%v", name, short), func(t *testing.T) {
				t.Parallel()
				w, p := openBehind(t)
				l := w.line(0)
				defer l.Release()
				l.Short = short
				p.BlackHole()
				ctx, limit, want := end(t)
				begun := time.Now()
				_, err := l.Do(ctx, limit, w.elements(1))
				if took := time.Since(begun); !errors.Is(err, want) || took > 10*time.Second { // I8, with room for a busy machine
					t.Errorf("error %v after %s, want %v", err, took, want)
				}
				p.Heal()
				if _, err := w.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2}}); err != nil {
					t.Errorf("the client afterwards: %v", err)
				}
			})
		}
	}
}

func TestCutFreesACallAndReleaseOneThatIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*wire.Line){"cut": (*wire.Line).Cut, "release": (*wire.Line).Release} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := mongotest.Own(t, localcluster.Config{})
			w := &world{t: t, dialer: wire.NewDialer(nil)}
			client, err := mongo.Connect(d.Options().SetDialer(w.dialer))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
				defer cancel()
				_ = client.Disconnect(ctx) // the server is frozen
			}()
			w.coll = client.Database("db").Collection("c")
			l := w.line(0)
			defer l.Release()
			if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(200*time.Millisecond, func() { cut(l) })
			limit := soon()
			if _, err := l.Do(t.Context(), limit, w.elements(1)); err == nil || time.Now().After(limit) {
				t.Errorf("error %v, %s before the limit", err, time.Until(limit))
			}
			if _, err := l.Do(t.Context(), soon(), w.elements(2)); !errors.Is(err, wire.ErrReleased) {
				t.Errorf("afterwards: error %v", err)
			}
		})
	}
}

func TestACompressedEncryptedOrCancelledCommandIsAnOrdinaryOne(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *options.ClientOptions) { o.SetCompressors([]string{"zlib"}) })
	if l, out := w.hold(t.Context(), 1); l != nil || out.Err != nil || w.count() != 1 {
		t.Errorf("compressed: held %v, error %v, %d documents; want an ordinary insert", l != nil, out.Err, w.count())
	}
	d := mongotest.Own(t, localcluster.Config{TLS: true})
	w = open(t, func(o *options.ClientOptions) { o.ApplyURI(d.URI) })
	if l, out := w.hold(t.Context(), 1); l != nil || out.Err != nil || w.count() != 1 {
		t.Errorf("encrypted: held %v, error %v, %d documents; want an ordinary insert", l != nil, out.Err, w.count())
	}
	w = open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, out := w.hold(ctx, 1); l != nil || !errors.Is(out.Err, context.Canceled) {
		t.Errorf("cancelled: held %v, error %v", l != nil, out.Err)
	}
}

func TestABrokenConnectionIsTheDriversError(t *testing.T) {
	t.Parallel()
	w, p := openBehind(t)
	l := w.line(0)
	defer l.Release()
	p.Cut()
	_, err := l.Do(t.Context(), soon(), w.elements(1))
	if !mongo.IsNetworkError(err) {
		t.Errorf("error %v (%T), want the driver's for a broken connection", err, err)
	}
}
