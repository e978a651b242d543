package failover

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// Every option of a connection string that speaks of what the layer does is honoured, overridden and said,
// or refused: the table of DESIGN.md.
func TestEveryOptionOfTheConnectionStringIsHonouredOrRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		query   string
		c       Config
		refused string              // part of the error
		said    string              // the start of what is logged
		holds   func(l *Layer) bool // what is true of the layer
	}{
		{"retryWrites=true", Config{}, "", "retryWrites=true", func(l *Layer) bool { return !*l.opts.RetryWrites }},
		{"retryWrites=false", Config{}, "", "", func(l *Layer) bool { return !*l.opts.RetryWrites }},
		{"retryReads=true", Config{}, "", "retryReads=true", func(l *Layer) bool { return !*l.opts.RetryReads }},
		{"w=majority", Config{}, "", "", func(l *Layer) bool { return l.cfg.WriteConcern == Majority }},
		{"w=1", Config{}, "w=1 asks for less", "", nil},
		{"w=1", Config{WriteConcern: One}, "", "", func(l *Layer) bool { return !l.majority() }},
		{"w=0", Config{}, "w=0", "", nil},
		{"w=0", Config{WriteConcern: One}, "w=0", "", nil},
		{"w=2", Config{}, "w=2", "", nil},
		{"w=twoDatacentres", Config{}, "w=twoDatacentres", "", nil},
		{"journal=true", Config{}, "", "", func(l *Layer) bool { return l.cfg.Journal }},
		{"journal=false", Config{Journal: true}, "", "", func(l *Layer) bool { return l.cfg.Journal }},
		{"timeoutMS=3000", Config{}, "", "", func(l *Layer) bool {
			return l.cfg.Budget == 3*time.Second && l.cfg.AttemptTimeout == DefaultAttemptTimeout && l.opts.Timeout == nil
		}},
		{"timeoutMS=700", Config{}, "", "", func(l *Layer) bool {
			return l.cfg.Budget == 700*time.Millisecond && l.cfg.AttemptTimeout == 700*time.Millisecond
		}},
		{"timeoutMS=3000", Config{Budget: time.Minute}, "", "timeoutMS=3000", func(l *Layer) bool { return l.cfg.Budget == time.Minute }},
		{"timeoutMS=0", Config{}, "", "timeoutMS=0", func(l *Layer) bool { return l.cfg.Budget == DefaultBudget }},
		{"timeoutMS=5", Config{}, "AttemptTimeout", "", nil},
		{"timeoutMS=5", Config{AttemptTimeout: time.Second}, "Budget", "", nil},
		{"connectTimeoutMS=0", Config{}, "", "connectTimeoutMS=0", func(l *Layer) bool { return *l.opts.ConnectTimeout == DefaultAttemptTimeout }},
		{"connectTimeoutMS=30000", Config{}, "", "connectTimeoutMS=30000", func(l *Layer) bool { return *l.opts.ConnectTimeout == DefaultAttemptTimeout }},
		{"connectTimeoutMS=300", Config{}, "", "", func(l *Layer) bool { return *l.opts.ConnectTimeout == 300*time.Millisecond }},
		{"serverSelectionTimeoutMS=30000", Config{}, "", "serverSelectionTimeoutMS=30000", func(l *Layer) bool { return *l.opts.ServerSelectionTimeout == DefaultAttemptTimeout }},
		{"heartbeatFrequencyMS=10000", Config{}, "", "heartbeatFrequencyMS=10000", func(l *Layer) bool { return *l.opts.HeartbeatInterval == heartbeatInterval }},
		{"heartbeatFrequencyMS=100", Config{}, "heartbeatFrequencyMS", "", nil},
		{"readPreference=secondaryPreferred", Config{}, "", "", func(l *Layer) bool { return l.opts.ReadPreference.Mode() == readpref.SecondaryPreferredMode }},
		{"readConcernLevel=local", Config{}, "", "", func(l *Layer) bool { return l.opts.ReadConcern.Level == "local" }},
		{"maxPoolSize=3", Config{}, "", "", func(l *Layer) bool { return *l.opts.MaxPoolSize == 3 && l.maxLines == 0 }},
		{"maxPoolSize=8", Config{}, "", "", func(l *Layer) bool { return l.maxLines == 2 }},
	} {
		l, err := New(options.Client().ApplyURI("mongodb://h/?"+tt.query), tt.c)
		if tt.refused != "" || err != nil {
			if err == nil || tt.refused == "" || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s with %+v: error %v, want one about %q", tt.query, tt.c, err, tt.refused)
			}
			continue
		}
		if !tt.holds(l) {
			t.Errorf("%s with %+v: %+v", tt.query, tt.c, l.cfg)
		}
		if said := slices.ContainsFunc(l.overridden, func(s string) bool { return strings.HasPrefix(s, tt.said+" ") }); said != (tt.said != "") || tt.said == "" && len(l.overridden) > 0 {
			t.Errorf("%s with %+v: it is said that %q", tt.query, tt.c, l.overridden)
		}
	}
}

// What is overridden is said once, when the layer connects, and not before. Options that the driver itself
// drops (wtimeoutMS, socketTimeoutMS) change nothing.
func TestWhatIsOverriddenIsSaidOnceAtTheFirstConnection(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	db := d.DB(t)
	var log bytes.Buffer
	sep := "?"
	if strings.Contains(d.URI, "?") {
		sep = "&"
	}
	l, err := New(options.Client().ApplyURI(d.URI+sep+"retryWrites=true&wtimeoutMS=1&socketTimeoutMS=1"), Config{Logger: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("New says %s", &log)
	}
	w := l.Collection(db.Name(), "c", CollectionConfig{})
	for range 2 {
		if err := w.InsertOne(t.Context(), encode(bson.D{{Key: "_id", Value: bson.NewObjectID()}})); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "retryWrites=true"); n != 1 {
		t.Errorf("it is said %d times: %s", n, &log)
	}
}

// The connection string's read preference is for Read; what resolves an insert is read from the primary.
func TestAReadPreferenceDoesNotMoveWhatResolvesAnInsert(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	db := d.DB(t)
	l, err := New(d.Options().SetReadPreference(readpref.Secondary()), Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	var resolved []string
	l.cfg.Hooks.OnAttempt = func(a Attempt) {
		if a.Kind == KindResolve {
			resolved = append(resolved, a.Member)
		}
	}
	w := l.Collection(db.Name(), "c", CollectionConfig{})
	doc := encode(bson.D{{Key: "_id", Value: 1}})
	for range 2 {
		if err := w.InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	primary := l.primary.Addr()
	if len(resolved) == 0 || slices.ContainsFunc(resolved, func(m string) bool { return m != primary }) {
		t.Errorf("it was resolved at %v, the primary is %s", resolved, primary)
	}
	var at string
	l.cfg.Hooks.OnAttempt = func(a Attempt) { at = a.Member }
	if _, err := l.Find(t.Context(), db.Name(), "c", ReadConfig{}, bson.D{}); err != nil || at == primary || at == "" {
		t.Errorf("Find went to %q, error %v", at, err)
	}
}

func TestProfilesAreCompleteAndNamed(t *testing.T) {
	t.Parallel()
	for _, p := range append(Profiles(), "") {
		s := p.Settings()
		if s.AttemptTimeout < MinAttemptTimeout || s.Budget != DefaultBudget || s.ConnectTimeout <= 0 || s.ServerSelectionTimeout <= 0 ||
			s.HeartbeatInterval < 500*time.Millisecond || s.Server.HeartbeatInterval > s.Server.ElectionTimeout/4 || s.Outage == "" {
			t.Errorf("%q: %+v", p, s)
		}
		l, err := New(nil, Config{Profile: p})
		if err != nil || l.cfg.AttemptTimeout != s.AttemptTimeout || l.cfg.Budget != s.Budget || *l.opts.ConnectTimeout != s.ConnectTimeout ||
			*l.opts.ServerSelectionTimeout != s.ServerSelectionTimeout || *l.opts.HeartbeatInterval != s.HeartbeatInterval {
			t.Errorf("%q: %v, %+v", p, err, l)
		}
	}
	if l, err := New(nil, Config{Profile: ProfileFast, AttemptTimeout: 3 * time.Second}); err != nil || l.cfg.AttemptTimeout != 3*time.Second {
		t.Errorf("a field that is set does not win: %v", err)
	}
	if _, err := New(nil, Config{Profile: "quick"}); err == nil || !strings.Contains(err.Error(), `"quick"`) || !strings.Contains(err.Error(), "default, fast") {
		t.Errorf("error %v does not name the valid profiles", err)
	}
}
