package localcluster

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestAuthAndTLSAreDemandedAndTheURICarriesBoth(t *testing.T) {
	for name, cfg := range map[string]Config{
		"standalone": {Auth: true, TLS: true},
		"set":        {Members: 3, Auth: true, TLS: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Dir = t.TempDir()
			c := start(t, cfg)
			insert(t, c.URI(), 1)
			if cfg.Members == 3 {
				if _, err := c.StepDown(t.Context(), "primary"); err != nil { // needs a login, too
					t.Errorf("step down: %v", err)
				}
			}
			u, err := url.Parse(c.URI())
			if err != nil {
				t.Fatal(err)
			}
			password, _ := u.User.Password()
			for what, change := range map[string]func(*url.URL, url.Values){
				"without credentials": func(u *url.URL, _ url.Values) { u.User = nil },
				"with a wrong one":    func(u *url.URL, _ url.Values) { u.User = url.UserPassword(rootUser, password+"x") },
				"without TLS":         func(_ *url.URL, q url.Values) { q.Del("tls"); q.Del("tlsCAFile") },
				"without the CA":      func(_ *url.URL, q url.Values) { q.Del("tlsCAFile") },
			} {
				changed, q := *u, u.Query()
				change(&changed, q)
				changed.RawQuery = q.Encode()
				if listDatabases(t, changed.String()) == nil {
					t.Errorf("a client %s is let in", what)
				}
			}
			secrets, err := filepath.Glob(filepath.Join(c.Dir(), "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range secrets {
				info, err := os.Stat(f)
				if err != nil {
					t.Fatal(err)
				}
				if !info.IsDir() && info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s may be read by others: %v", f, info.Mode())
				}
			}
			down(t, c)
			c = start(t, cfg) // again: the user exists, the keys are kept
			if n := count(t, c.URI()); n != 1 {
				t.Errorf("%d documents, want 1", n)
			}
		})
	}
}

func listDatabases(t *testing.T, uri string) error {
	t.Helper()
	cl, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(time.Second))
	if err != nil {
		return err
	}
	defer func() { _ = cl.Disconnect(t.Context()) }()
	_, err = cl.ListDatabaseNames(t.Context(), bson.D{})
	return err
}

// I10: errors and logs of a cluster with credentials do not tell them.
func TestThePasswordIsNotOnAnyCommandLine(t *testing.T) {
	st := freshState(Config{Members: 3, Auth: true, TLS: true})
	args := strings.Join(st.args("/d", Member{Name: "m0", Dir: "/d/m0"}, "", 20000), " ")
	if st.Password == "" || strings.Contains(args, st.Password) {
		t.Errorf("arguments %q", args)
	}
}
