package checkpoint

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// A member that is behind answers the store's reads, as one that was primary, or a new one that does
// not yet know what was acknowledged, does for a moment. Here it stays behind for as long as the test
// wants. It cannot be taken for another holder's doing, and no call goes back.
func TestMongoAMemberThatIsBehindFencesNobody(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: []string{"--setParameter", "enableTestCommands=1"}})
	coll := d.DB(t).Collection("checkpoints")
	layer, err := failover.New(nil, failover.Config{AttemptTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMongo(coll, layer, MongoConfig{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := m.Acquire(t.Context(), "a", "shop.orders", "one")
	if err != nil {
		t.Fatal(err)
	}
	members := d.Cluster.Status(t.Context())
	i := slices.IndexFunc(members, func(m localcluster.Member) bool { return m.Role == localcluster.RoleSecondary })
	uri, err := d.Cluster.MemberURI(members[i].Name)
	if err != nil {
		t.Fatal(err)
	}
	direct := (&mongotest.Deployment{URI: uri}).DB(t).Client()
	failPoint := func(mode string) {
		t.Helper()
		cmd := bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}
		if err := direct.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	failPoint("alwaysOn")
	for range 5 { // the one in flight still arrives there; the later ones do not
		deadline := time.Now().Add(time.Minute) // for the other secondary to find another source
		for {
			next, err := m.Save(t.Context(), cp)
			if err == nil {
				cp = next
				break
			}
			if _, fenced := errors.AsType[*record.FencedError](err); fenced || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}

	m.coll = committed(direct.Database(coll.Database().Name()).Collection(coll.Name()))
	_, err = m.Save(t.Context(), cp)
	if _, fenced := errors.AsType[*record.FencedError](err); err == nil || fenced {
		t.Errorf("Save through a member that is behind: error %v, want one that says nothing of another holder", err)
	}
	if got, err := m.Load(t.Context(), "a"); err == nil && got.Revision < cp.Revision {
		t.Errorf("Load gives revision %d, %d was acknowledged", got.Revision, cp.Revision)
	}

	failPoint("off")
	deadline := time.Now().Add(time.Minute)
	for {
		got, err := m.Load(t.Context(), "a")
		if err == nil && got.Revision >= cp.Revision {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the member that may go on: revision %d, error %v", got.Revision, err)
		}
	}
	m.coll = committed(coll)
	if _, err := m.Save(t.Context(), cp); err != nil {
		t.Error(err)
	}
}
