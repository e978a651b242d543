package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// realDaemon is a `capstan serve` that replicates between two databases of a real set.
type realDaemon struct {
	*process
	dir, file, name string
	source, target  *mongo.Database
	client          *admin.Client
}

// newRealDaemon writes a configuration; more is appended to its list of targets.
func newRealDaemon(t *testing.T, options, more string) *realDaemon {
	t.Helper()
	set := mongotest.ReplicaSet(t)
	dir, err := os.MkdirTemp("", "serve")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &realDaemon{dir: dir, file: filepath.Join(dir, "capstan.yaml")}
	d.source = set.DB(t)
	d.name = d.source.Name()
	d.target = d.source.Client().Database(d.name + "_copy")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.target.Drop(ctx); err != nil {
			t.Error(err)
		}
	})
	socket := "unix:" + filepath.Join(dir, "admin.sock")
	d.client = admin.NewClient(socket)
	text := fmt.Sprintf(`admin: {listen: '%s', token: %s}
routes:
- name: %s
  source: {uri: '%s'}
  include: [%s.*]
  rename: [{from: %s.*, to: %s.*}]
%s  targets:
  - {name: copy, uri: '%s'}
%s`, socket, serveToken, d.name, set.URI, d.name, d.name, d.target.Name(), options, set.URI, more)
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *realDaemon) start(t *testing.T) {
	t.Helper()
	d.process = start(t, "", nil, "serve", "-c", d.file)
}

// status returns a route's status, once the daemon answers.
func (d *realDaemon) status(t *testing.T, target string) daemon.RouteStatus {
	t.Helper()
	var found daemon.RouteStatus
	eventually(t, "the daemon knows "+target, func() bool {
		s, _, err := d.client.Status(t.Context())
		i := slices.IndexFunc(s.Routes, func(r daemon.RouteStatus) bool { return r.Route == d.name+"/"+target })
		if err != nil || i < 0 {
			return false
		}
		found = s.Routes[i]
		return true
	})
	return found
}

func (d *realDaemon) phase(t *testing.T, target, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%+v\n%s", d.status(t, target), d.stderr.String())
		}
	}()
	eventually(t, target+" is "+want, func() bool { return string(d.status(t, target).Phase) == want })
}

func (d *realDaemon) insert(t *testing.T, from, to int) {
	t.Helper()
	docs := make([]any, 0, to-from)
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "eu", Value: i%2 == 0}})
	}
	if _, err := d.source.Collection("orders").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

func (d *realDaemon) copied(t *testing.T) int {
	t.Helper()
	n, err := d.target.Collection("orders").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// TestTheDaemonReplicatesPausesAndGoesOnAfterAKill runs one route through the life of a daemon, and cites I7: what a kill costs is
// repeated, not lost.
func TestTheDaemonReplicatesPausesAndGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	d := newRealDaemon(t, "  filters: [{namespace: '*.orders', query: '{\"eu\": true}'}]\n", "")
	d.insert(t, 0, 1000)
	d.start(t)
	d.phase(t, "copy", "live")
	if n := d.copied(t); n != 500 {
		t.Errorf("%d documents are copied, want the 500 that the filter selects", n)
	}
	if c := d.status(t, "copy").Copy; c.Scanned != 1000 || c.Matched != 500 {
		t.Errorf("the copy says %+v", c)
	}
	d.insert(t, 1000, 1100)
	eventually(t, "what is inserted arrives", func() bool { return d.copied(t) == 550 })
	if _, err := d.client.Control(t.Context(), d.name+"/copy", daemon.Pause, serveToken); err != nil {
		t.Fatal(err)
	}
	d.phase(t, "copy", "paused")
	d.insert(t, 1100, 1200)
	// A paused route stays paused over a kill, and goes on where it was.
	if err := d.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	d.start(t)
	d.phase(t, "copy", "paused")
	if n := d.copied(t); n != 550 {
		t.Errorf("%d documents although the route is paused", n)
	}
	if _, err := d.client.Control(t.Context(), d.name+"/copy", daemon.Resume, serveToken); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it catches up", func() bool { return d.copied(t) == 600 })
	if c := d.status(t, "copy").Totals; c.Scanned != 1000 {
		t.Errorf("it copied again: %d documents were scanned over all runs", c.Scanned)
	}
	eventually(t, "the lag is known and small", func() bool {
		s := d.status(t, "copy")
		return s.LagSeconds != nil && *s.LagSeconds < 10 && s.Checkpoint.Time != ""
	})
	stdout, stderr, code := capstan(t, "", "status", "-c", d.file)
	if code != 0 || !strings.Contains(stdout, d.name+"/copy  LIVE") || !strings.Contains(stdout, "matched 500") {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.code(t); code != 0 {
		t.Errorf("code %d:\n%s", code, d.stderr.String())
	}
}

// TestADeadDestinationDelaysNoOther cites I6: one target answers, the other has nobody.
func TestADeadDestinationDelaysNoOther(t *testing.T) {
	t.Parallel()
	d := newRealDaemon(t, "", "  - {name: dead, uri: 'mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=500'}\n")
	d.insert(t, 0, 100)
	d.start(t)
	d.phase(t, "copy", "live")
	d.insert(t, 100, 200)
	eventually(t, "the good target has everything", func() bool { return d.copied(t) == 200 })
	eventually(t, "the dead one says why", func() bool {
		s := d.status(t, "dead")
		return !s.Well() && strings.Contains(s.LastError+s.Reason, "127.0.0.1:1")
	})
	s, _, err := d.client.Status(t.Context())
	if err != nil || s.Ready {
		t.Errorf("ready with a dead destination: %v", err)
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.code(t); code != 0 && code != exitFailed {
		t.Errorf("code %d:\n%s", code, d.stderr.String())
	}
}

func TestAFinalizedRouteIsWellAfterARestart(t *testing.T) {
	t.Parallel()
	d := newRealDaemon(t, "", "")
	d.insert(t, 0, 10)
	d.start(t)
	d.phase(t, "copy", "live")
	if _, err := d.client.Control(t.Context(), d.name+"/copy", daemon.Finalize, serveToken); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.phase(t, "copy", "finalized")
		if err := d.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := d.code(t); code != 0 {
			t.Fatalf("code %d:\n%s", code, d.stderr.String())
		}
		d.start(t)
	}
	d.phase(t, "copy", "finalized")
	if st, _, err := d.client.Status(t.Context()); err != nil || !st.Ready {
		t.Errorf("not ready: %+v, %v", st.Routes, err)
	}
}
