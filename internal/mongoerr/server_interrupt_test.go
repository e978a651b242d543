package mongoerr_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// halted inserts six documents in one command and stops the server's work on it after the first
// `after` pairs of them. Then it calls interrupt with the operation's number, which must end the
// command, and returns what became of it. If patient, the operation does not notice until it goes on.
func (w *world) halted(t *testing.T, after int, patient bool, interrupt func(op any), more ...bson.E) answer {
	t.Helper()
	c := w.made(t)
	ns := c.Database().Name() + "." + c.Name()
	control := w.member(t, w.primary(t))
	set := func(mode any) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := admin(ctx, control, e("configureFailPoint", "hangDuringBatchInsert"), e("mode", mode),
			e("data", bson.D{e("nss", ns), e("shouldCheckForInterrupt", !patient)}))
		if err != nil {
			t.Log("fail point: ", err) // the server may have ended
		}
	}
	set(bson.D{e("skip", after)})
	ids := []any{0, 1, 2, 3, 4, 5}
	docs := make([]bson.D, len(ids))
	for i, id := range ids {
		docs[i] = doc(id)
	}
	ended := make(chan error, 1)
	go func() { ended <- insertAll(t.Context(), c, docs, more...) }()
	interrupt(w.operation(t, bson.D{e("ns", ns), e("failpointMsg", "hangDuringBatchInsert")}))
	if patient {
		set("off")
	}
	err := <-ended
	if !patient {
		set("off")
	}
	return answer{err, c, ids, 2 * after}
}

// primary returns the name of the member that takes writes.
func (w *world) primary(t *testing.T) string {
	t.Helper()
	if len(w.d.Cluster.Members()) == 1 {
		return "m0"
	}
	return w.role(t, localcluster.RolePrimary)
}

// interruptEvents end a command between two of its documents: what the server answers says nothing
// about the first ones. The last event ends the server.
var interruptEvents = []happening{
	{11601, asCommand, "killOp in the middle of a batch", func(t *testing.T, w *world) answer {
		return w.halted(t, 1, false, func(op any) { run(t, w.client, e("killOp", 1), e("op", op)) })
	}},
	{11601, asCommand, "killOp before the first document", func(t *testing.T, w *world) answer {
		return w.halted(t, 0, false, func(op any) { run(t, w.client, e("killOp", 1), e("op", op)) })
	}},
	{50, asCommand, "maxTimeMS in the middle of a batch", func(t *testing.T, w *world) answer {
		return w.halted(t, 2, false, func(any) {}, e("maxTimeMS", 1000))
	}},
	{11600, asCommand, "SIGTERM in the middle of a batch", func(t *testing.T, w *world) answer {
		stopped := make(chan error, 1)
		a := w.halted(t, 1, false, func(any) {
			go func() {
				_, err := w.d.Cluster.Stop(t.Context(), "m0")
				stopped <- err
			}()
		})
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		w.start(t, "m0")
		return a
	}},
}

// start starts a member that was stopped.
func (w *world) start(t *testing.T, name string) {
	t.Helper()
	if _, err := w.d.Cluster.Start(context.WithoutCancel(t.Context()), name); err != nil {
		t.Error(err)
	}
}

// stepDownEvents take the role from the primary, or end members.
var stepDownEvents = []happening{
	{11602, asCommand, "step-down in the middle of a batch", func(t *testing.T, w *world) answer {
		a := w.halted(t, 1, false, func(any) { w.stepDown(t) })
		a.want = -1 // two are applied; whether they are committed is open
		return a
	}},
	{189, asDocument, "step-down before the first document", func(t *testing.T, w *world) answer {
		return w.halted(t, 0, true, func(any) { w.stepDown(t) })
	}},
	{11602, asConcern, "step-down while a write waits for the majority", func(t *testing.T, w *world) (a answer) {
		c := w.made(t)
		w.unreplicated(t, func() {
			ended := w.waitingInsert(t, c)
			w.stepDown(t)
			a = answer{<-ended, c, []any{"a"}, -1}
		})
		return a
	}},
	{11602, asConcern, "primary that lost its majority", func(t *testing.T, w *world) answer {
		c := w.made(t)
		w.settle(t)
		for _, name := range w.roles(t, localcluster.RoleSecondary) {
			if _, err := w.d.Cluster.Freeze(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = w.d.Cluster.Thaw(t.Context(), name) }()
		}
		return answer{insert(t.Context(), c, doc("a")), c, []any{"a"}, -1}
	}},
	{91, asRead, "server that says goodbye", func(t *testing.T, w *world) answer {
		return answer{err: w.goodbye(t)}
	}},
}

// waitingInsert starts an insert and returns when its document is applied and waits for the majority.
func (w *world) waitingInsert(t *testing.T, c *mongo.Collection) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- insert(t.Context(), c, doc("a")) }()
	until(t, "the document to be applied", func() error { return c.FindOne(t.Context(), doc("a")).Err() })
	return ended
}

// goodbye stops a secondary and returns what it says to a command between the signal and its end. The
// driver's monitor would hear it first, and no command would be sent any more: so the monitor's
// connections go through a proxy that is silent by then.
func (w *world) goodbye(t *testing.T) (said error) {
	t.Helper()
	name := w.role(t, localcluster.RoleSecondary)
	run(t, w.member(t, name), e("setParameter", 1), e("shutdownTimeoutMillisForSignaledShutdown", 3000))
	m := w.unwarned(t, name)
	stopped := make(chan error, 1)
	go func() {
		_, err := w.d.Cluster.Stop(t.Context(), name)
		stopped <- err
	}()
	defer func() {
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		w.start(t, name)
	}()
	until(t, "the member to say goodbye", func() error {
		if said = admin(t.Context(), m, e("hello", 1)); said == nil {
			return errors.New("it says nothing of it")
		}
		return nil
	})
	return said
}

// unwarned returns a client of one member with a working connection, whose monitor hears nothing.
func (w *world) unwarned(t *testing.T, name string) *mongo.Client {
	t.Helper()
	addr := w.address(t, name)
	p, err := faultnet.Listen(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	d, proxied := &detour{}, p.Addr()
	d.to.Store(&proxied)
	m := connect(t, options.Client().ApplyURI("mongodb://"+addr+"/?directConnection=true").SetDialer(d))
	// A command that does not end keeps the pool's first connection, so the next one is dialled anew.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- admin(ctx, m, e("sleep", 1), e("millis", 60000), e("lock", "none")) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	operationOn(t, w.member(t, name), bson.D{e("command.sleep", 1)})
	d.to.Store(nil)
	run(t, m, e("hello", 1))
	p.SwallowReplies()
	t.Cleanup(p.Heal)
	return m
}
