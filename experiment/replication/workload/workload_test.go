package workload

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

func TestASeedDecidesWhatEveryWriterIntends(t *testing.T) {
	t.Parallel()
	intent := func(seed uint64, writer int) string {
		l, err := New(Config{Seed: seed, Ops: 2000})
		if err != nil {
			t.Fatal(err)
		}
		return l.Intent(writer)
	}
	first := intent(1, 1)
	if first != intent(1, 1) {
		t.Error("the same seed intends something else")
	}
	if first == intent(2, 1) || first == intent(1, 2) {
		t.Error("another seed or writer intends the same")
	}
	for _, k := range Kinds() {
		if !strings.Contains("\n"+first, "\n"+k+" ") {
			t.Errorf("2000 operations without one of the kind %s", k)
		}
	}
}

func TestKindsThatAreLeftOutDoNotCome(t *testing.T) {
	t.Parallel()
	l, err := New(Config{Ops: 2000, Without: []string{"drop", "capped"}})
	if err != nil {
		t.Fatal(err)
	}
	if text := "\n" + l.Intent(1); strings.Contains(text, "\ndrop ") || strings.Contains(text, "\ncapped ") {
		t.Error("a kind comes that was left out")
	}
	if _, err := New(Config{Without: []string{"nonsense"}}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Error(err)
	}
}

// A kind of which a server refuses everything tries nothing.
func TestAServerAcceptsOperationsOfEveryKind(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	client, err := mongo.Connect(options.Client().ApplyURI(d.URI))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	l, err := New(Config{Seed: 3, Prefix: "kinds", Ops: 1500, Writers: 2, Documents: 900})
	if err != nil {
		t.Fatal(err)
	}
	for _, db := range l.Databases() {
		defer func() { _ = client.Database(db).Drop(t.Context()) }()
	}
	watch, err := client.Watch(t.Context(), mongo.Pipeline{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Close(t.Context()) }()
	if err := l.Prepare(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	s := l.Stats()
	for _, k := range Kinds() {
		if s.Done[k] == 0 {
			t.Errorf("no operation of the kind %s was accepted, %d refused", k, s.Refused[k])
		}
	}
	t.Logf("%v, refused %v", s.Done, s.Refused)
	if _, err := client.Database(l.Databases()[1]).Collection("end").InsertOne(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	checkEvents(t, watch)
}

// checkEvents looks for the events that the load is there to cause, up to the insert into a collection "end".
func checkEvents(t *testing.T, watch *mongo.ChangeStream) {
	t.Helper()
	types, truncated := map[string]int{}, 0
	for watch.Next(t.Context()) {
		if coll, ok := watch.Current.Lookup("ns", "coll").StringValueOK(); ok && coll == "end" {
			break
		}
		types[watch.Current.Lookup("operationType").StringValue()]++
		if cut, ok := watch.Current.Lookup("updateDescription", "truncatedArrays").ArrayOK(); ok {
			if v, err := bson.Raw(cut).Values(); err == nil && len(v) > 0 {
				truncated++
			}
		}
	}
	if err := watch.Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"insert", "update", "replace", "delete", "drop", "rename"} {
		if types[want] == 0 {
			t.Errorf("no event of type %s in %v", want, types)
		}
	}
	if truncated < 10 {
		t.Errorf("%d events with truncated arrays", truncated)
	}
}
