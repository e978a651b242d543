package failover

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// What a user may not do is said at once, and nothing is said to be unknown.
func TestUsersWithoutRightsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1, Auth: true})
	s := newStream(t, d, Config{})
	admin := s.coll.Database().Client().Database("admin")
	db := s.coll.Database().Name()
	insertOnly := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: db}, {Key: "collection", Value: "s"}}}, {Key: "actions", Value: bson.A{"insert"}}}}
	for _, cmd := range []bson.D{
		{{Key: "createRole", Value: "insertOnly"}, {Key: "privileges", Value: insertOnly}, {Key: "roles", Value: bson.A{}}},
		{{Key: "createUser", Value: "reader"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: db}}}}},
		{{Key: "createUser", Value: "inserter"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{"insertOnly"}}},
	} {
		if err := admin.RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) *stream {
		s.use(d.Options().SetAuth(options.Credential{Username: user, Password: password, AuthSource: "admin"}), Config{})
		return s
	}
	start := time.Now()
	_, err := as("reader", "x").w.WriteBatch(t.Context(), messages("a", 1, 3))
	if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); unknown || !mongoerr.IsUnauthorized(err) {
		t.Errorf("a user who may only read: %v", err)
	}
	_, err = as("reader", "wrong").w.WriteBatch(t.Context(), messages("a", 1, 3))
	if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); unknown || !mongoerr.BadCredentials(err) || mongoerr.CannotConnect(err) {
		t.Errorf("a wrong password: %v", err)
	}
	if took := time.Since(start); took > DefaultBudget/2 {
		t.Errorf("it took %v to say so", took)
	}
	if applied, err := as("inserter", "x").w.WriteBatch(t.Context(), messages("a", 1, 3)); err != nil || applied != 3 {
		t.Errorf("a user who may only insert: applied %d, %v", applied, err)
	}
	s.ok("a", 3)
}
