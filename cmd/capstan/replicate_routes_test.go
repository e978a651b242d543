package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

func TestWhatADestinationRemembersIsListedAndForgotten(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	route := d.DB(t).Name() // no other test has it
	target, err := mongodb.NewTarget(options.Client().ApplyURI(d.URI), mongodb.TargetConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = target.Close(ctx)
	})
	store, err := mongodb.NewStore(target, mongodb.StoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const holder = "elsewhere pid 1"
	st, err := store.Acquire(t.Context(), route, holder, false)
	if err != nil {
		t.Fatal(err)
	}
	st.Phase, st.Position = replicator.PhaseLive, record.Position{TS: record.Timestamp{T: 1_700_000_000, I: 1}}
	st.Collections = []replicator.CollectionState{{UUID: "u"}}
	if st, err = store.Save(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	id := bson.NewObjectID()
	typ, value, err := bson.MarshalValue(id)
	if err != nil {
		t.Fatal(err)
	}
	letter := replicator.Letter{Route: route, Source: record.Namespace{DB: "shop", Coll: "orders"}, ID: bson.RawValue{Type: typ, Value: value},
		Reason: "mongodb://u:hunter2@h refuses it", Op: "put", Time: time.Now()}
	letters := mongodb.NewLetters(target)
	if err := letters.Add(t.Context(), []replicator.Letter{letter}); err != nil {
		t.Fatal(err)
	}
	at := []string{"--target-uri", d.URI}
	ask := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := capstan(t, "", append(append([]string{"replicate"}, args...), at...)...)
		if code != want || strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%v: code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout + stderr
	}
	expect := func(got, want string) {
		t.Helper()
		if !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	expect(ask(exitOK, "routes"), route+" live "+holder+" 2023-11-14T22:13:20Z 1 1")
	expect(ask(exitOK, "routes", "--output", "json"), fmt.Sprintf(`{"route":%q,"phase":"live"`, route))
	oid := fmt.Sprintf(`{"$oid":"%s"}`, id.Hex())
	expect(ask(exitOK, "letters", "--name", route), route+": shop.orders _id "+oid+": mongodb://u:***@h refuses it (attempts: 1)")
	expect(ask(exitOK, "letters", "--output", "json"), `"namespace":"shop.orders","_id":`+oid)

	// While its owner lives it stays.
	alive, stop := context.WithCancel(t.Context())
	held := make(chan replicator.State, 1)
	go func() {
		now := st
		defer func() { held <- now }()
		for alive.Err() == nil {
			next, err := store.Save(t.Context(), now)
			if err != nil {
				t.Error(err)
				return
			}
			now = next
		}
	}()
	expect(ask(exitFailed, "forget", route), "stop what runs it")
	stop()
	if err := store.Release(t.Context(), <-held); err != nil {
		t.Fatal(err)
	}
	expect(ask(exitOK, "routes"), route+" live nobody ")
	expect(ask(exitOK, "forget", route), route+" is forgotten, with 1 dead letter; its documents stay")
	expect(ask(exitFailed, "forget", route), "capstan replicate routes lists what there is")
	expect(ask(exitOK, "letters", "--name", route), "there are no dead letters")
}
