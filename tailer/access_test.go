package tailer

import (
	"context"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// users makes a stream on a server that demands credentials, and in its database users with no, some
// and enough rights.
func users(t *testing.T, d *mongotest.Deployment) *mongo.Database {
	t.Helper()
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	(&writer{coll: coll, src: "a/1"}).send(t, 5)
	db := coll.Database().Name()
	on := func(actions ...string) bson.A {
		return bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: db}, {Key: "collection", Value: "s"}}}, {Key: "actions", Value: actions}}}
	}
	for _, cmd := range []bson.D{
		{{Key: "createRole", Value: "find"}, {Key: "privileges", Value: on("find")}, {Key: "roles", Value: bson.A{}}},
		{{Key: "createUser", Value: "nobody"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{}}},
		{{Key: "createUser", Value: "finder"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{"find"}}},
		{{Key: "createUser", Value: "reader"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: db}}}}},
	} {
		if err := coll.Database().RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return coll.Database()
}

// What a user may not do ends the stream at once, with what to do about it, and without a storm of
// attempts; a secret is never named (I10).
func TestAUserWithoutRightsIsToldAtOnce(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Auth: true})
	db := users(t, d)
	for name, c := range map[string]struct {
		opts *options.ClientOptions
		is   func(error) bool
		says string
	}{
		"a wrong password":  {as(d, db, "reader", "s3cret"), mongoerr.BadCredentials, ""},
		"no such user":      {as(d, db, "stranger", "s3cret"), mongoerr.BadCredentials, ""},
		"no rights":         {as(d, db, "nobody", "x"), mongoerr.IsUnauthorized, "read role"},
		"find and not list": {as(d, db, "finder", "x"), mongoerr.IsUnauthorized, "listCollections"},
		"no credentials":    {options.Client().SetHosts(d.Options().Hosts), mongoerr.IsUnauthorized, "read role"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var why reasons
			s, err := New(c.opts, db.Name(), "s", Config{Start: record.Start{Where: record.Earliest}, Hooks: Hooks{OnReopen: why.add, OnWait: why.add}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			// One attempt; a wrong password takes the server as long as the right one.
			inTime(t, "the error", DefaultConnectTimeout, func() { _, err = s.Next(t.Context()) })
			if !c.is(err) || mongoerr.CannotConnect(err) || !strings.Contains(err.Error(), db.Name()+".s") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the password is in %v", err)
			}
			if got := why.all(); len(got) != 0 {
				t.Errorf("it tried again: %v", got)
			}
			t.Log(err)
		})
	}
	t.Run("a reader", func(t *testing.T) {
		t.Parallel()
		a := newTally()
		s, err := New(as(d, db, "reader", "x"), db.Name(), "s", Config{Start: record.Start{Where: record.Earliest}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		a.until(t, s, "a/1", 5)
	})
}

// Rights that are taken away while the stream is tailed end it, too.
func TestAUserWhoIsRemovedIsTold(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Auth: true})
	for name, remove := range map[string]bson.D{
		"rights": {{Key: "updateUser", Value: "reader"}, {Key: "roles", Value: bson.A{}}},
		"user":   {{Key: "dropUser", Value: "reader"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := users(t, d)
			s, err := New(as(d, db, "reader", "x"), db.Name(), "s", Config{Start: record.Start{Where: record.Earliest}, Await: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			a := newTally()
			a.until(t, s, "a/1", 5)
			if err := db.RunCommand(t.Context(), remove).Err(); err != nil {
				t.Fatal(err)
			}
			inTime(t, "the error", 2*DefaultConnectTimeout, func() { _, err = s.Next(t.Context()) })
			if !mongoerr.IsUnauthorized(err) && !mongoerr.BadCredentials(err) {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// So does a password that was changed, once the connection has to be made anew: nobody tries for ever
// what locks the account in some directories.
func TestAPasswordThatWasChangedIsTold(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Auth: true})
	db := users(t, d)
	p, err := faultnet.Listen(t.Context(), d.Cluster.Members()[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var why reasons
	s, err := New(as(d, db, "reader", "x").SetHosts([]string{p.Addr()}), db.Name(), "s", Config{Start: record.Start{Where: record.Earliest}, Hooks: Hooks{OnReopen: why.add}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	newTally().until(t, s, "a/1", 5)
	if err := db.RunCommand(t.Context(), bson.D{{Key: "updateUser", Value: "reader"}, {Key: "pwd", Value: "y"}}).Err(); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	why.wait(t, 1)
	p.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if _, err = s.Next(ctx); !mongoerr.BadCredentials(err) {
		t.Errorf("got %v after %d attempts", err, len(why.all()))
	}
	t.Log(err)
}

// as returns options for a user of db.
func as(d *mongotest.Deployment, db *mongo.Database, user, password string) *options.ClientOptions {
	return d.Options().SetAuth(options.Credential{Username: user, Password: password, AuthSource: db.Name()})
}

// A server whose certificate is not signed by the authority that the user names is never read from,
// and the error says why.
func TestAWrongCertificateAuthorityIsNamed(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{TLS: true})
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	stranger := httptest.NewTLSServer(nil) // has a certificate that it signed itself
	defer stranger.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	uri := "mongodb://" + d.Cluster.Members()[0].Addr + "/?tls=true"
	for name, uri := range map[string]string{"another authority": uri + "&tlsCAFile=" + ca, "none": uri} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := New(options.Client().ApplyURI(uri), coll.Database().Name(), "s", Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			inTime(t, "the error", DefaultConnectTimeout+DefaultAttemptTimeout, func() { _, err = s.Next(t.Context()) })
			if !mongoerr.CannotConnect(err) || !strings.Contains(err.Error(), "x509") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}
