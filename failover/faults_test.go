package failover

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

var testCommands = []string{"--setParameter", "enableTestCommands=1"}

// failInserts makes the server's next n inserts fail as data says, for clients with the name app.
func failInserts(t *testing.T, admin *mongo.Database, app string, n int, data bson.D) {
	t.Helper()
	data = append(bson.D{{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "appName", Value: app}}, data...)
	mode := func(m any, d bson.D) error {
		return admin.RunCommand(context.WithoutCancel(t.Context()), bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: m}, {Key: "data", Value: d}}).Err()
	}
	if err := mode(bson.D{{Key: "times", Value: n}}, data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mode("off", data); err != nil {
			t.Error(err)
		}
	})
}

func concernError(code int) bson.D {
	return bson.D{{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: code}, {Key: "errmsg", Value: "fail point"}}}}
}

// TestTransientFaultsLoseNothing goes through the error table with a real server's fail points:
// errorCode and closeConnection strike before execution, writeConcernError after it.
func TestTransientFaultsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d members", members), func(t *testing.T) {
			t.Parallel()
			d := mongotest.Own(t, localcluster.Config{Members: members, ExtraArgs: testCommands})
			admin := d.DB(t).Client().Database("admin")
			faults := map[string]bson.D{
				"connection closed":              {{Key: "closeConnection", Value: true}},
				"answer later than the deadline": {{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 1500}},
			}
			codes, concerns := []int{6, 50, 91, 112, 189, 262, 10107, 11600, 11602, 13435, 13436, 14031}, []int{50, 64, 91, 189, 11602}
			if members == 1 {
				codes, concerns = []int{91, 11600}, nil // what a single server says
			}
			for _, code := range codes {
				faults[fmt.Sprintf("code %d", code)] = bson.D{{Key: "errorCode", Value: code}}
			}
			for _, code := range concerns {
				faults[fmt.Sprintf("write concern error %d", code)] = concernError(code)
			}
			for name, fault := range faults {
				t.Run(name, func(t *testing.T) { // one at a time: a server has one such fail point
					retries := 0
					s := newStream(t, d, Config{AttemptTimeout: time.Second, Hooks: Hooks{OnRetry: func(Retry) { retries++ }}})
					s.use(d.Options().SetAppName(name), s.l.cfg)
					if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
						t.Fatal(err)
					}
					failInserts(t, admin, name, 2, fault)
					if applied, err := s.w.WriteBatch(t.Context(), messages("a", 11, 20)); err != nil || applied != 20 {
						t.Fatalf("applied %d, %v", applied, err)
					}
					if retries == 0 {
						t.Error("the fault was not met")
					}
					s.ok("a", 30)
				})
			}
		})
	}
}

// TestFinalErrorsSayWhatIsCertain: errors that another try would meet again.
func TestFinalErrorsSayWhatIsCertain(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	admin := d.DB(t).Client().Database("admin")
	for _, tt := range []struct {
		name    string
		fault   bson.D
		stored  int64
		unknown bool
		code    int
	}{
		{"not authorised", bson.D{{Key: "errorCode", Value: 13}}, 10, false, 13},
		{"unknown code", bson.D{{Key: "errorCode", Value: 8}}, 10, true, 8},
		{"write concern that the set never satisfies", concernError(100), 30, true, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStream(t, d, Config{})
			s.use(d.Options().SetAppName(tt.name), Config{})
			if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
				t.Fatal(err)
			}
			failInserts(t, admin, tt.name, 1, tt.fault)
			applied, err := s.w.WriteBatch(t.Context(), messages("a", 11, 20))
			var unknown *record.UnknownOutcomeError
			if applied != 0 || errors.As(err, &unknown) != tt.unknown || mongoerr.Classify(err).Code != tt.code {
				t.Fatalf("applied %d, %v", applied, err)
			}
			if tt.unknown && len(unknown.IDs) != 20 {
				t.Errorf("%d ids are unknown, want 20", len(unknown.IDs))
			}
			s.elected() // a write of the majority: what was applied before is committed
			s.ok("a", tt.stored)
		})
	}
}

func TestAValidatorStopsTheBatchAtThatMessage(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*mongotest.Deployment{"standalone": mongotest.Standalone(t), "replica set": mongotest.ReplicaSet(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			validator := bson.D{{Key: "seq", Value: bson.D{{Key: "$ne", Value: 4}}}}
			if err := s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "s"}, {Key: "validator", Value: validator}}).Err(); err != nil {
				t.Fatal(err)
			}
			docs := messages("a", 1, 10)
			applied, err := s.w.WriteBatch(t.Context(), docs)
			var rejected *record.RejectedError
			if applied != 3 || !errors.As(err, &rejected) || rejected.Index != 3 || rejected.ID != idOf(docs[3]) {
				t.Fatalf("applied %d, %v", applied, err)
			}
			s.ok("a", 3)
		})
	}
}

func TestADuplicateOnAnotherIndexIsRefusedForGood(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.ReplicaSet(t), Config{})
	index := mongo.IndexModel{Keys: bson.D{{Key: "src", Value: 1}, {Key: "seq", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := s.coll.Indexes().CreateOne(t.Context(), index); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{3, 0} { // other _ids, the same src and seq
		applied, err := s.w.WriteBatch(t.Context(), messages("a", 1, 3))
		var rejected *record.RejectedError
		if applied != want || want == 0 && (!errors.As(err, &rejected) || errors.Is(err, record.ErrExists)) {
			t.Fatalf("applied %d, %v", applied, err)
		}
	}
	s.ok("a", 3)
}

func TestAReplacedStreamIsNeverWrittenTo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		replace func(s *stream) error
		renamed string
	}{
		{"dropped", func(s *stream) error { return s.coll.Drop(s.t.Context()) }, ""},
		{"dropped and created again", func(s *stream) error {
			err := s.coll.Drop(s.t.Context())
			s.create(streamSize)
			return err
		}, ""},
		{"renamed", func(s *stream) error {
			ns := s.coll.Database().Name()
			return s.coll.Database().Client().Database("admin").RunCommand(s.t.Context(),
				bson.D{{Key: "renameCollection", Value: ns + ".s"}, {Key: "to", Value: ns + ".other"}}).Err()
		}, "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, mongotest.ReplicaSet(t), Config{})
			if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 3)); err != nil {
				t.Fatal(err)
			}
			if err := tt.replace(s); err != nil {
				t.Fatal(err)
			}
			applied, err := s.w.WriteBatch(t.Context(), messages("a", 4, 3))
			var replaced *ReplacedError
			if applied != 0 || !errors.As(err, &replaced) || replaced.Renamed != tt.renamed {
				t.Fatalf("applied %d, %v", applied, err)
			}
			specs, err := s.coll.Database().ListCollectionSpecifications(t.Context(), bson.D{{Key: "options.capped", Value: bson.D{{Key: "$ne", Value: true}}}})
			if err != nil || len(specs) != 0 {
				t.Errorf("a collection that is not capped appeared: %v, %v", specs, err)
			}
			if docs := s.stored(); len(docs) != 0 {
				t.Errorf("%d messages were written to what replaced the stream", len(docs))
			}
		})
	}
}

func TestWhatCannotBeStoredIsRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.Standalone(t), Config{})
	good := message("a", 1, 10)
	truncated := append(bson.Raw(nil), good[:len(good)-1]...)
	for name, tt := range map[string]struct {
		doc  bson.Raw
		want error
	}{
		"larger than the stream": {message("a", 2, streamSize), ErrTooLarge},
		"truncated":              {truncated, ErrBadDocument},
		"empty":                  {nil, ErrBadDocument},
		"without _id":            {encode(bson.D{{Key: "src", Value: "a"}}), ErrBadDocument},
	} {
		attempts := 0
		s.l.cfg.Hooks.OnAttempt = func(a Attempt) { attempts += a.Documents }
		applied, err := s.w.WriteBatch(t.Context(), []bson.Raw{tt.doc})
		var rejected *record.RejectedError
		if applied != 0 || !errors.As(err, &rejected) || !errors.Is(err, tt.want) || attempts != 0 {
			t.Errorf("%s: applied %d, %v, %d documents sent", name, applied, err, attempts)
		}
	}
	// Behind good ones: those are written first.
	applied, err := s.w.WriteBatch(t.Context(), []bson.Raw{good, message("a", 2, 10), truncated, message("a", 3, 10)})
	var rejected *record.RejectedError
	if applied != 2 || !errors.As(err, &rejected) || rejected.Index != 2 {
		t.Errorf("applied %d, %v", applied, err)
	}
	s.ok("a", 2)
}

func TestTheLargestDocumentsFit(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.Standalone(t), Config{AttemptTimeout: 20 * time.Second})
	if err := s.coll.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.create(100 << 20)
	w := s.l.Stream(s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
	docs := messages("a", 1, 3)
	empty := message("a", 4, 0)
	docs = append(docs, message("a", 4, record.MaxDocumentSize-len(empty)), message("a", 5, 100))
	if len(docs[3]) != record.MaxDocumentSize {
		t.Fatalf("%d bytes", len(docs[3]))
	}
	for i := range 10 { // and more than one command can hold
		docs = append(docs, message("a", int64(6+i), 3<<20))
	}
	if applied, err := w.WriteBatch(t.Context(), docs); err != nil || applied != len(docs) {
		t.Fatalf("applied %d, %v", applied, err)
	}
	s.ok("a", int64(len(docs)))
}
