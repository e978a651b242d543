// Package mongotest gives tests a real MongoDB: one standalone server and one replica set per test
// binary, started when a test first asks for them and shared by the package's tests, or a private
// cluster for a test that breaks it.
//
// It promises that every DB is empty and belongs to one test alone, and that nothing is left behind
// when the binary ends, however it ends. Tests may run in parallel. A machine without mongod skips
// the tests; where CI=true is set it fails them.
package mongotest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

// oplogMB is small: the tests of a package write little, and their members share one disk.
const oplogMB = 200

// cleanupTimeout bounds each step of a clean-up: a broken server must not hang the test binary.
const cleanupTimeout = 30 * time.Second

// Deployment is a running MongoDB. Safe for concurrent use.
type Deployment struct {
	// URI is its connection string.
	URI string
	// Cluster controls its servers. Only the test that called Own may break them.
	Cluster *localcluster.Cluster
}

// shared is a deployment that the tests of a binary share.
type shared struct {
	members int
	once    sync.Once
	d       *Deployment
	err     error
	down    func() error
}

var (
	standalone = shared{members: 1}
	replicaSet = shared{members: 3}
	// inMain is set by Main: without it nobody would take the shared servers down.
	inMain atomic.Bool
	// databases counts the databases handed out, for names that never repeat.
	databases atomic.Int64
)

// Main is the body of a package's TestMain: it runs the tests, takes the shared deployments down,
// and fails if a goroutine is left over. It does not return.
func Main(m *testing.M) {
	inMain.Store(true)
	code := m.Run()
	// The servers first: their keepers are goroutines too.
	for _, s := range []*shared{&standalone, &replicaSet} {
		if s.down == nil {
			continue
		}
		if err := s.down(); err != nil {
			fmt.Fprintln(os.Stderr, "mongotest:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "mongotest: goroutines left over:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Standalone returns the standalone server that the package's tests share; the first call starts it.
// Nobody may break it.
func Standalone(t testing.TB) *Deployment {
	t.Helper()
	return standalone.get(t)
}

// ReplicaSet returns the three-member replica set that the package's tests share; the first call
// starts it (a few seconds). Nobody may break it.
func ReplicaSet(t testing.TB) *Deployment {
	t.Helper()
	return replicaSet.get(t)
}

// Own starts a cluster for this test alone, which may break it. It is taken down when the test ends.
func Own(t testing.TB, cfg localcluster.Config) *Deployment {
	t.Helper()
	if cfg.OplogMB == 0 {
		cfg.OplogMB = oplogMB
	}
	c, err := localcluster.Start(t.Context(), cfg)
	if err != nil {
		missing(t, err)
		if errors.Is(err, localcluster.ErrNeedsDisk) || cfg.DiskMB > 0 && errors.Is(err, fs.ErrPermission) {
			t.Skip("needs root, for disks of a small size: ", err)
		}
		t.Fatal(err)
	}
	base := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(base, cleanupTimeout)
		defer cancel()
		if err := c.Down(ctx); err != nil {
			t.Errorf("take own cluster down: %v", err)
		}
	})
	return &Deployment{URI: c.URI(), Cluster: c}
}

func (s *shared) get(t testing.TB) *Deployment {
	t.Helper()
	if !inMain.Load() {
		t.Fatal("mongotest: the package needs: func TestMain(m *testing.M) { mongotest.Main(m) }")
	}
	s.once.Do(func() {
		// The servers outlive the test that happens to ask first.
		ctx := context.WithoutCancel(t.Context())
		c, err := localcluster.Start(ctx, localcluster.Config{Members: s.members, OplogMB: oplogMB})
		if err != nil {
			s.err = err
			return
		}
		s.d = &Deployment{URI: c.URI(), Cluster: c}
		s.down = func() error {
			ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
			defer cancel()
			return c.Down(ctx)
		}
	})
	if s.err != nil {
		missing(t, s.err)
		t.Fatal(s.err)
	}
	return s.d
}

// Mongod returns the path of the mongod that tests run, for tests that start it by other ways than
// this package's. Without one it skips the test, or fails it in CI.
func Mongod(t testing.TB) string {
	t.Helper()
	path, err := localcluster.Find()
	if err != nil {
		missing(t, err)
		t.Fatal(err)
	}
	return path
}

// missing skips the test if err says that there is no mongod, and this is not CI.
func missing(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, localcluster.ErrNoMongod) && os.Getenv("CI") != "true" {
		t.Skip("needs a real MongoDB: ", err)
	}
}

// Options returns client options for the deployment; each call returns a new value, which the caller may change.
func (d *Deployment) Options() *options.ClientOptions {
	return options.Client().ApplyURI(d.URI)
}

// DB returns a new, empty database named after the test, on a client of its own. When the test
// ends, the database is dropped and the client disconnected.
func (d *Deployment) DB(t testing.TB) *mongo.Database {
	t.Helper()
	client, err := mongo.Connect(d.Options())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	db := client.Database(databaseName(t.Name(), databases.Add(1)))
	base := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(base, cleanupTimeout)
		defer cancel()
		// A cluster of the test's own may have no primary left to ask, and its data go with it.
		if d.isShared() {
			if err := db.Drop(ctx); err != nil {
				t.Errorf("drop %s: %v", db.Name(), err)
			}
		}
		ctx, cancel = context.WithTimeout(base, cleanupTimeout)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return db
}

func (d *Deployment) isShared() bool { return d == standalone.d || d == replicaSet.d }

// databaseName makes a valid name (at most 63 bytes, no / \ . " $ * < > : | ?) that tells which
// test it belongs to.
func databaseName(test string, n int64) string {
	const limit = 40
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, test)
	if len(clean) > limit {
		h := fnv.New32a()
		_, _ = h.Write([]byte(test)) // never fails
		clean = fmt.Sprintf("%s_%08x", clean[:limit-9], h.Sum32())
	}
	return fmt.Sprintf("%s_%d", clean, n)
}
