package mongoerr_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// soon is a deadline for commands that get no answer.
const soon = 500 * time.Millisecond

// closedAddress returns an address where nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// network is a server behind a proxy, with a client that goes through it.
type network struct {
	*world
	proxy  *faultnet.Proxy
	client *mongo.Client
}

func (w *world) behind(t *testing.T, change func(*options.ClientOptions)) network {
	t.Helper()
	p, err := faultnet.Listen(t.Context(), w.address(t, "m0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	d := &detour{}
	addr := p.Addr()
	d.to.Store(&addr)
	o := w.d.Options().SetDialer(d).SetServerSelectionTimeout(2 * time.Second)
	if change != nil {
		change(o)
	}
	n := network{w, p, connect(t, o)}
	t.Cleanup(p.Heal) // or the client would wait for an answer to its goodbye
	if err := n.client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return n
}

// insert inserts one document through the network.
func (n network) insert(ctx context.Context, c *mongo.Collection, document bson.D) error {
	return insert(ctx, n.client.Database(c.Database().Name()).Collection(c.Name()), document)
}

// meant compares what an error means with what it must mean.
func meant(t *testing.T, err error, want mongoerr.Class) mongoerr.Class {
	t.Helper()
	got := mongoerr.Classify(err)
	want.Event, want.Index = got.Event, -1
	if got != want || got.Event == "" {
		t.Errorf("%T %v:\ngot  %+v\nwant %+v", err, err, got, want)
	}
	return got
}

var (
	notSent = mongoerr.Class{Write: mongoerr.WriteNotSent, Read: mongoerr.ReadRetry, Tail: mongoerr.TailReopen, Untouched: true, Network: true}
	unknown = mongoerr.Class{Write: mongoerr.WriteUnknown, Read: mongoerr.ReadRetry, Tail: mongoerr.TailReopen, Network: true}
	stop    = mongoerr.Class{Write: mongoerr.WriteStop, Read: mongoerr.ReadStop, Tail: mongoerr.TailRefused, Untouched: true, Network: true}
)

func late(c mongoerr.Class) mongoerr.Class {
	c.Timeout = true
	return c
}

// networkEvents are errors that the driver makes, each by a real cause. They are about an insert
// through a network that breaks.
var networkEvents = []struct {
	name string
	want mongoerr.Class
	run  func(*testing.T, *world) answer
}{
	{"reply lost after the write was applied, deadline", late(unknown), func(t *testing.T, w *world) answer {
		n, c := w.behind(t, nil), w.made(t)
		n.proxy.SwallowReplies()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return answer{n.insert(ctx, c, doc("a")), c, []any{"a"}, 1}
	}},
	{"reply lost after the write was applied, reset", unknown, func(t *testing.T, w *world) answer {
		n, c := w.behind(t, nil), w.made(t)
		n.proxy.SwallowReplies()
		ended := make(chan error, 1)
		go func() { ended <- n.insert(t.Context(), c, doc("a")) }()
		until(t, "the document", func() error { return c.FindOne(t.Context(), doc("a")).Err() })
		n.proxy.Cut()
		return answer{<-ended, c, []any{"a"}, 1}
	}},
	{"silence in the middle of the command", late(unknown), func(t *testing.T, w *world) answer {
		n, c := w.behind(t, nil), w.made(t)
		n.proxy.SilenceAfter(100 << 10)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := n.insert(ctx, c, doc("a", e("data", make([]byte, 1<<20))))
		n.proxy.Heal() // resets: what is half a command never becomes a whole one
		return answer{err, c, []any{"a"}, 0}
	}},
	{"ended by the caller while it runs", unknown, func(t *testing.T, w *world) answer {
		n, c := w.behind(t, nil), w.made(t)
		n.proxy.SwallowReplies()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.insert(ctx, c, doc("a")) }()
		until(t, "the document", func() error { return c.FindOne(t.Context(), doc("a")).Err() })
		cancel()
		return answer{<-ended, c, []any{"a"}, 1}
	}},
	{"connection closed before the command ran", unknown, func(t *testing.T, w *world) answer {
		c := w.made(t)
		client := w.told(t, "insert", e("closeConnection", true))
		return answer{insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
	{"no server", late(notSent), func(t *testing.T, w *world) answer {
		c := w.made(t)
		client := connect(t, options.Client().ApplyURI("mongodb://"+closedAddress(t)).SetServerSelectionTimeout(soon))
		return answer{insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
	{"no free connection", late(notSent), func(t *testing.T, w *world) answer {
		n, c := w.behind(t, func(o *options.ClientOptions) { o.SetMaxPoolSize(1) }), w.made(t)
		defer n.hold(t, n.client)()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return answer{n.insert(ctx, c, doc("a")), c, []any{"a"}, 0}
	}},
	{"pool cleared while waiting for a connection", notSent, func(t *testing.T, w *world) answer {
		var asked atomic.Int64
		n := w.behind(t, func(o *options.ClientOptions) {
			o.SetMaxPoolSize(1).SetPoolMonitor(&event.PoolMonitor{Event: func(ev *event.PoolEvent) {
				if ev.Type == event.ConnectionCheckOutStarted {
					asked.Add(1)
				}
			}})
		})
		c := w.made(t)
		defer n.hold(t, n.client)()
		before, ended := asked.Load(), make(chan error, 1)
		go func() { ended <- n.insert(t.Context(), c, doc("a")) }()
		until(t, "the insert to ask for a connection", func() error {
			if asked.Load() == before {
				return errors.New("it does not")
			}
			return nil
		})
		n.proxy.Cut()
		return answer{<-ended, c, []any{"a"}, 0}
	}},
	{"dial refused", notSent, func(t *testing.T, w *world) answer {
		client, d := w.turned(t)
		addr := closedAddress(t)
		d.to.Store(&addr)
		c := w.made(t)
		return answer{insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
	{"name that does not resolve", notSent, func(t *testing.T, w *world) answer {
		client, d := w.turned(t)
		addr := "no-such-host.invalid:27017"
		d.to.Store(&addr)
		c := w.made(t)
		return answer{insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
	{"silent handshake", late(notSent), func(t *testing.T, w *world) answer {
		n := w.behind(t, nil)
		n.proxy.BlackHole()
		client, d := w.turned(t)
		addr := n.proxy.Addr()
		d.to.Store(&addr)
		c := w.made(t)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return answer{insert(ctx, client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
	{"too little time for one round trip", late(notSent), func(t *testing.T, w *world) answer {
		return w.slow(t)
	}},
	{"client that is closed", stop, func(t *testing.T, w *world) answer {
		c := w.made(t)
		client := connect(t, w.d.Options())
		_ = client.Disconnect(t.Context())
		return answer{insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a")), c, []any{"a"}, 0}
	}},
}

// turned returns a client whose one connection is busy, and the dialer that will dial the next one.
func (w *world) turned(t *testing.T) (*mongo.Client, *detour) {
	t.Helper()
	d := &detour{}
	client := connect(t, w.d.Options().SetDialer(d))
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network{world: w}.hold(t, client))
	return client, d
}

// hold keeps one connection of a client busy until the returned function is called.
func (n network) hold(t *testing.T, client *mongo.Client) (release func()) {
	t.Helper()
	mark := n.serial.Add(1)
	ended := make(chan error, 1)
	go func() {
		ended <- admin(t.Context(), client, e("sleep", 1), e("millis", 60000), e("lock", "none"), e("comment", mark))
	}()
	op := n.operation(t, bson.D{e("command.comment", mark)})
	return func() {
		_ = admin(context.WithoutCancel(t.Context()), n.world.client, e("killOp", 1), e("op", op)) // it may have ended
		<-ended
	}
}

// slow inserts with a deadline that is shorter than one round trip to a server that takes its time.
func (w *world) slow(t *testing.T) answer {
	t.Helper()
	const app, delay = "slow", 100
	set := func(mode string) {
		run(t, w.client, e("configureFailPoint", "failCommand"), e("mode", mode), e("data", bson.D{
			e("failCommands", bson.A{"hello", "isMaster", "ismaster"}), e("appName", app), e("blockConnection", true), e("blockTimeMS", delay),
		}))
	}
	set("alwaysOn")
	defer set("off")
	client := connect(t, w.d.Options().SetAppName(app))
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	short := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), delay/2*time.Millisecond)
		defer cancel()
		return do(ctx)
	}
	until(t, "the driver to know how slow the server is", func() error {
		err := short(func(ctx context.Context) error { return client.Ping(ctx, nil) })
		if !errors.Is(err, driver.ErrDeadlineWouldBeExceeded) {
			return errors.Join(errors.New("it tries"), err)
		}
		return nil
	})
	c := w.made(t)
	err := short(func(ctx context.Context) error {
		return insert(ctx, client.Database("table").Collection(c.Name()), doc("a"))
	})
	return answer{err, c, []any{"a"}, 0}
}

// networkErrors runs networkEvents.
func networkErrors(t *testing.T, w *world) {
	for _, ev := range networkEvents {
		t.Run(ev.name, func(t *testing.T) {
			a := ev.run(t, w)
			w.isTrue(t, meant(t, a.err, ev.want), a)
			if never := ev.want.Write == mongoerr.WriteNotSent; never != mongoerr.CannotConnect(a.err) {
				t.Errorf("cannot connect: %t", !never)
			}
		})
	}
}

// tlsErrors are refusals to speak, which the next try would meet too: they stop at once, whether the
// driver's monitor met them or the operation.
func tlsErrors(t *testing.T, w *world) {
	for _, tt := range []struct {
		name   string
		change func(*tls.Config)
	}{
		{"expired certificate", func(c *tls.Config) { c.Time = func() time.Time { return time.Now().AddDate(100, 0, 0) } }},
		{"unknown authority", func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }},
		{"version that the server does not speak", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 }},
		{"certificate of another host", func(c *tls.Config) { c.ServerName = "other.example" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := w.d.Options().SetServerSelectionTimeout(2 * time.Second)
			cfg := o.TLSConfig.Clone()
			tt.change(cfg)
			err := connect(t, o.SetTLSConfig(cfg)).Ping(t.Context(), nil)
			meant(t, err, late(stop))
			if !mongoerr.CannotConnect(err) || mongoerr.BadCredentials(err) {
				t.Error("it is not told that there is no connection: ", err)
			}
		})
	}
	t.Run("certificate that expires while the client runs", func(t *testing.T) {
		o := w.d.Options()
		cfg := o.TLSConfig.Clone()
		var expired atomic.Bool
		cfg.Time = func() time.Time {
			if expired.Load() {
				return time.Now().AddDate(100, 0, 0)
			}
			return time.Now()
		}
		client := connect(t, o.SetTLSConfig(cfg))
		if err := client.Ping(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network{world: w}.hold(t, client))
		expired.Store(true)
		c := w.made(t)
		err := insert(t.Context(), client.Database("table").Collection(c.Name()), doc("a"))
		w.isTrue(t, meant(t, err, stop), answer{err, c, []any{"a"}, 0})
	})
	// Here the server hangs up without a word, as one that restarts does: that is tried again.
	own := selfSigned(t)
	for name, change := range map[string]func(*options.ClientOptions){
		"client without TLS": func(o *options.ClientOptions) { o.SetTLSConfig(nil) },
		"client certificate of an unknown authority": func(o *options.ClientOptions) {
			cfg := o.TLSConfig.Clone()
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
			o.SetTLSConfig(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.d.Options().SetServerSelectionTimeout(2 * time.Second)
			change(o)
			meant(t, connect(t, o).Ping(t.Context(), nil), late(notSent))
		})
	}
}

// selfSigned returns a certificate that nobody trusts.
func selfSigned(t *testing.T) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// setErrors are errors that only a client of a replica set meets.
func setErrors(t *testing.T, w *world) {
	t.Run("wrong set name", func(t *testing.T) {
		err := connect(t, w.d.Options().SetReplicaSet("other").SetServerSelectionTimeout(2*time.Second)).Ping(t.Context(), nil)
		if meant(t, err, late(notSent)); !mongoerr.IsNoPrimary(err) {
			t.Error("it is not told that there is no primary: ", err)
		}
	})
	t.Run("the driver's own retry hides the first attempt", func(t *testing.T) { retryHides(t, w) })
	t.Run("no primary", func(t *testing.T) {
		for _, name := range w.roles(t, localcluster.RoleSecondary) {
			if _, err := w.d.Cluster.Freeze(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = w.d.Cluster.Thaw(t.Context(), name) }()
		}
		client := connect(t, w.d.Options().SetServerSelectionTimeout(soon))
		var err error
		until(t, "the primary to give up", func() error {
			if err = insert(t.Context(), client.Database("table").Collection("x"), bson.D{}, concern(soon)); !mongoerr.IsNoPrimary(err) {
				return errors.Join(errors.New("it does not"), err)
			}
			return nil
		})
		meant(t, err, late(notSent))
	})
}

// retryHides shows why the clients of capstan are made with retryWrites=false, and why Classify holds for
// those alone: with the driver's retries on, a write that is stored comes back as "not primary", which
// means "not applied". The reply of the first attempt was lost, the second met a member that had
// stepped down.
func retryHides(t *testing.T, w *world) {
	c := w.made(t)
	name := w.primary(t)
	p, err := faultnet.Listen(t.Context(), w.address(t, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + p.Addr() + "/?directConnection=true&retryWrites=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	p.SwallowReplies()
	ended := make(chan error, 1)
	go func() {
		_, err := client.Database(c.Database().Name()).Collection(c.Name()).InsertOne(t.Context(), doc("a"))
		ended <- err
	}()
	until(t, "the document", func() error { return c.FindOne(t.Context(), doc("a")).Err() })
	w.settle(t) // the document is committed
	if _, err := w.d.Cluster.StepDown(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	p.Heal() // resets the connection of the first attempt
	err = <-ended
	if cl := mongoerr.Classify(err); cl.Code != 10107 || cl.Write != mongoerr.WriteNotSent {
		t.Errorf("got %v, want the answer of the second attempt, 10107", err)
	}
	if has := w.found(t, c, []any{"a"}); len(has) != 1 {
		t.Error("the document is not stored")
	}
}
