package tailer

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// What a user needs, and that somebody who may not is told what.
func TestAChangeStreamSaysWhichPrivilegeIsMissing(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, Auth: true})
	db := d.DB(t)
	insertDoc(t, db.Collection("s"), 1)
	if err := db.RunCommand(t.Context(), bson.D{{Key: "createUser", Value: "reader"}, {Key: "pwd", Value: "hunter2"}, {Key: "roles", Value: bson.A{"read"}}}).Err(); err != nil {
		t.Fatal(err)
	}
	as := d.Options().SetAuth(options.Credential{Username: "reader", Password: "hunter2", AuthSource: db.Name()})
	earliest := record.Start{Where: record.Earliest}
	for _, c := range []struct {
		db, coll string
		start    record.Start
		want     string // "": it opens
	}{
		{db.Name(), "s", record.Start{}, ""},
		{db.Name(), "", record.Start{}, ""},
		{"other", "", record.Start{}, "the role read on the database other"},
		{"", "", record.Start{}, "readAnyDatabase"},
		{db.Name(), "s", earliest, "local.oplog.rs"},
	} {
		s, err := NewChanges(as, c.db, c.coll, ChangesConfig{Start: c.start})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Open(t.Context())
		_ = s.Close()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%q.%q: %v, want %q", c.db, c.coll, err, c.want)
		}
	}
	// Who may not look through the oplog gets the same events.
	begin := watchOpen(t, d, db.Name(), "", ChangesConfig{}).Start()
	insertDoc(t, db.Collection("s"), 2)
	denied, err := NewChanges(as, db.Name(), "s", ChangesConfig{Start: after(begin), skimAll: true})
	if err != nil {
		t.Fatal(err)
	}
	if r := events(t, denied, 1)[0]; key(r) != 2 {
		t.Errorf("without the oplog came the event of %d", key(r))
	}
	_ = denied.Close()
	wrong := d.Options().SetAuth(options.Credential{Username: "reader", Password: "hunter3", AuthSource: db.Name()})
	s, err := NewChanges(wrong, db.Name(), "s", ChangesConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Open(t.Context()); err == nil || strings.Contains(err.Error(), "hunter3") {
		t.Errorf("a wrong password: %v", err)
	}
}

// A secondary that is elected is left for another one, without a gap.
func TestAReaderOfSecondariesLeavesTheOneThatIsElected(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s", mongoCollectionMajority())
	w := &writer{coll: coll}
	insert := func(id int) {
		t.Helper()
		if err := w.insert(t.Context(), []bson.D{doc(id)}); err != nil {
			t.Fatal(err)
		}
	}
	insert(0)
	var mu sync.Mutex
	at := ""
	now := func() string { mu.Lock(); defer mu.Unlock(); return at }
	c, err := NewChanges(d.Options().SetReadPreference(readpref.Secondary()), coll.Database().Name(), "s", ChangesConfig{Await: 50 * time.Millisecond,
		Hooks: Hooks{OnOpen: func(addr string) { mu.Lock(); defer mu.Unlock(); at = addr }}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := now()
	primary := func() string {
		var hello struct{ Primary string }
		_ = coll.Database().RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello) // "" during the election
		return hello.Primary
	}
	n := 0
	for deadline := time.Now().Add(2 * testPatience); now() == first || now() == primary(); {
		if time.Now().After(deadline) {
			t.Fatalf("it reads from %s, and began at %s; the primary is %s", now(), first, primary())
		}
		if primary() != first {
			if _, err := d.Cluster.StepDown(t.Context(), "primary"); err != nil { // until it is the one that is read
				t.Log(err)
			}
		}
		n++
		insert(n)
		rs := events(t, c, 1)
		if n == 1 && key(rs[0]) == 0 {
			rs = events(t, c, 1) // "latest" on a secondary is that member's: it may not have had the first one yet
		}
		if key(rs[0]) != n {
			t.Fatalf("got %d, want %d", key(rs[0]), n)
		}
	}
}
