package mongotest

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

func TestMain(m *testing.M) { Main(m) }

func TestEveryDatabaseIsEmptyAndItsTestsAlone(t *testing.T) {
	for name, get := range map[string]func(testing.TB) *Deployment{"standalone": Standalone, "set": ReplicaSet} {
		t.Run(name, func(t *testing.T) {
			d := get(t)
			a, b := d.DB(t), d.DB(t)
			if a.Name() == b.Name() {
				t.Fatalf("both are %s", a.Name())
			}
			if _, err := a.Collection("c").InsertOne(t.Context(), bson.D{{Key: "x", Value: 1}}); err != nil {
				t.Fatal(err)
			}
			if n, err := b.Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 0 {
				t.Fatalf("count %d, %v", n, err)
			}
		})
	}
}

func TestADatabaseIsDroppedWhenItsTestEnds(t *testing.T) {
	d := Standalone(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		db := d.DB(t)
		name = db.Name()
		if _, err := db.Collection("c").InsertOne(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
	})
	names, err := d.DB(t).Client().ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: name}})
	if err != nil || len(names) != 0 {
		t.Errorf("still there: %v, %v", names, err)
	}
}

func TestSharedDeploymentsAreStartedOnce(t *testing.T) {
	first, second := Standalone(t), Standalone(t)
	if first != second {
		t.Error("two standalones")
	}
	a, b := first.Options(), second.Options()
	if a == b {
		t.Error("both callers change the same options")
	}
}

func TestAClusterOfOnesOwnMayBeBrokenAndIsGoneAfterTheTest(t *testing.T) {
	var d *Deployment
	t.Run("inner", func(t *testing.T) {
		d = Own(t, localcluster.Config{})
		d.DB(t) // cannot be dropped at the end, and that must neither fail nor take time
		if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
			t.Fatal(err)
		}
	})
	select {
	case <-d.Cluster.Done():
	default:
		t.Error("still up")
	}
}

// tb records what a test is told to do.
type tb struct {
	testing.TB
	told string
}

func (r *tb) Helper()           {}
func (r *tb) Skip(args ...any)  { r.told = "skip"; panic(r) }
func (r *tb) Fatal(args ...any) { r.told = "fail"; panic(r) }
func (r *tb) Cleanup(func())    {}
func (r *tb) run(f func()) *tb  { defer func() { _ = recover() }(); f(); return r }
func (r *tb) expect(want string) {
	r.TB.Helper()
	if r.told != want {
		r.TB.Errorf("told to %q, want %q", r.told, want)
	}
}

func TestAMissingMongodSkipsLocallyAndFailsInCI(t *testing.T) {
	t.Setenv(localcluster.MongodVar, "/nonexistent/mongod")
	for ci, want := range map[string]string{"": "skip", "true": "fail"} {
		t.Setenv("CI", ci)
		r := &tb{TB: t}
		r.run(func() { Own(r, localcluster.Config{}) })
		r.expect(want)
		s, r := shared{members: 1}, &tb{TB: t}
		r.run(func() { s.get(r) })
		r.expect(want)
	}
}

func TestDatabaseNamesAreValidAndTell(t *testing.T) {
	long := "TestX/" + strings.Repeat("a.$ü/", 40)
	for _, test := range []string{"TestX", "TestX/with_a.dot", long, long + "b"} {
		name := databaseName(test, 1<<40)
		if len(name) > 63 || strings.ContainsAny(name, "/\\. \"$*<>:|?\x00") || !strings.HasPrefix(name, "TestX") {
			t.Errorf("%q", name)
		}
	}
	if databaseName(long, 1) == databaseName(long+"b", 1) {
		t.Error("two long names are the same")
	}
	if fmt.Sprint(databaseName("TestX", 7)) != "TestX_7" {
		t.Error(databaseName("TestX", 7))
	}
}
