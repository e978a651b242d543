package mongodb_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// move gives every member of a set another address in its configuration, one after the other, and restarts it. It returns the new ones.
func (w *world) move(set *mongotest.Deployment) []string {
	w.Helper()
	ctx := w.Context()
	client, err := mongo.Connect(set.Options())
	must(w, err)
	defer func() { must(w, client.Disconnect(ctx)) }()
	admin := client.Database("admin")
	var moved []string
	for _, m := range set.Cluster.Members() {
		_, err := set.Cluster.Stop(ctx, m.Name)
		must(w, err)
		_, err = set.Cluster.Start(ctx, m.Name)
		must(w, err)
		addr := strings.Replace(m.Addr, "127.0.0.1", "localhost", 1)
		moved = append(moved, addr)
		// Elections come between: it is tried until the configuration says so.
		w.await("the set knows "+addr, func() bool {
			var got struct{ Config bson.D }
			if admin.RunCommand(ctx, d("replSetGetConfig", 1)).Decode(&got) != nil {
				return false
			}
			return w.reconfigured(admin, got.Config, m.Addr, addr)
		})
	}
	return moved
}

// reconfigured changes an address in a set's configuration. It reports whether it is changed and every member is well.
func (w *world) reconfigured(admin *mongo.Database, config bson.D, from, to string) bool {
	changed := false
	for i, e := range config {
		switch e.Key {
		case "version":
			config[i].Value = e.Value.(int32) + 1
		case "members":
			for _, member := range e.Value.(bson.A) {
				for j, f := range member.(bson.D) {
					if f.Key == "host" && f.Value == from {
						member.(bson.D)[j].Value, changed = to, true
					}
				}
			}
		}
	}
	if changed {
		_ = admin.RunCommand(w.Context(), d("replSetReconfig", config)).Err() // looked at in the next round
		return false
	}
	var status struct{ Members []struct{ State int } }
	if admin.RunCommand(w.Context(), d("replSetGetStatus", 1)).Decode(&status) != nil {
		return false
	}
	primary := false
	for _, m := range status.Members {
		if m.State != 1 && m.State != 2 {
			return false
		}
		primary = primary || m.State == 1
	}
	return primary
}

// TestARouteFollowsServersThatMove: every member of both sets is restarted and gets another address, one after the other, while the
// route is live; it follows them, and a process that is started with the new addresses goes on from the checkpoint.
func TestARouteFollowsServersThatMove(t *testing.T) {
	t.Parallel()
	from, to := mongotest.Own(t, localcluster.Config{Members: 3}), mongotest.Own(t, localcluster.Config{Members: 3})
	w := newWorldBetween(t, from, to, replicator.Config{})
	w.insert("a", many(0, 500)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	stop, written := make(chan struct{}), make(chan struct{})
	go func() { defer close(written); w.scribble(stop) }()
	source, target := w.move(from), w.move(to)
	close(stop)
	<-written
	w.equal("a")
	must(t, r.end())
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
	w.options = func(s, t *options.ClientOptions) { s.SetHosts(source); t.SetHosts(target) }
	copied := false
	w.cfg.Hooks.OnCopied = func(int64, int64, int64) { copied = true }
	w.insert("a", d("_id", "after the move"))
	r = w.start()
	w.equal("a")
	r.phase(replicator.PhaseLive)
	must(t, r.end())
	if copied {
		t.Error("the second process copied again")
	}
}

// TestAFullDiskOfTheDestinationHoldsTheRouteAndLosesNothing: the only member of the destination ends itself as its disk is full. The
// route waits, says so, and goes on when there is room.
func TestAFullDiskOfTheDestinationHoldsTheRouteAndLosesNothing(t *testing.T) {
	t.Parallel()
	to := mongotest.Own(t, localcluster.Config{Members: 1, Set: "small", DiskMB: localcluster.MinDiskMB})
	w := newWorldBetween(t, mongotest.ReplicaSet(t), to, replicator.Config{})
	w.insert("a", many(0, 500)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	full, err := to.Cluster.Inject(t.Context(), "disk-full", localcluster.FaultOptions{})
	must(t, err)
	w.insert("a", many(1000, 3000, "pad", strings.Repeat("x", 1000))...)
	w.await("the server ends", func() bool { return !to.Cluster.Members()[0].Running() })
	before := r.Status().Applied
	w.insert("a", d("_id", "while it is down"))
	w.await("the lag grows", func() bool { s := r.Status(); return s.LagSeconds != nil && *s.LagSeconds > 2 })
	if s := r.Status(); s.Applied != before {
		t.Errorf("applied went from %v to %v without a destination", before, s.Applied)
	}
	select {
	case <-r.done:
		t.Fatalf("the route ended: %v", r.err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, full.Heal(t.Context()))
	w.equal("a")
	r.phase(replicator.PhaseLive)
	must(t, r.end())
}
