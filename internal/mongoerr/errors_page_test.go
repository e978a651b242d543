package mongoerr_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

var updatePage = flag.Bool("update", false, "write docs/ERRORS.md anew")

const pageHead = `# What errors mean

This page is made from the table in ` + "`internal/mongoerr`" + ` by its tests (` + "`go test ./internal/mongoerr -run Page -update`" + `), which produce
every row on a real server and compare what it says about a write with what is stored afterwards.

A write is an insert with an _id that the client made, sent once (the driver's own retries are off).

- **not applied**: certainly, neither now nor later; it is sent again.
- **unknown**: may be applied; it is read back.
- **applied**: on that member, not known to be committed; it is read back.
- **exists**: a document with this key is there; if the key is _id and the reply has no write concern error, committed.
- **refused**: this document, for good; what comes before it in an ordered insert is applied, the rest is not.
- **stop**: no document can be written like this; "stop, not applied" where the check comes before any change.

A code that is not here means "stop" for everything, and the outcome of the write is unknown. Labels of a reply decide nothing.
A tail that is to **reopen** keeps its position; **lost**: the position is gone; **gone**: the collection is not what it was.

## Codes of the server

| code | name | what happened | write: command | document | write concern | read | tail | produced in the tests by |
|---|---|---|---|---|---|---|---|---|
`

const pageDriver = `
## Errors that the driver makes

Each is produced by its real cause, by a proxy that breaks the network where one is needed.

| what happened | write | read | tail |
|---|---|---|---|
`

// TestThePageOfErrorsIsTheTable fails if docs/ERRORS.md says something else than the table.
func TestThePageOfErrorsIsTheTable(t *testing.T) {
	t.Parallel()
	events := map[int][]string{}
	for _, p := range places() {
		for _, ev := range p.events {
			events[ev.code] = append(events[ev.code], ev.name)
		}
	}
	var b strings.Builder
	b.WriteString(pageHead)
	rows := mongoerr.Rows()
	slices.SortFunc(rows, func(a, b mongoerr.Row) int { return cmp.Compare(a.Code, b.Code) })
	for _, r := range rows {
		by := strings.Join(events[r.Code], "; ")
		if why, only := byFailPointOnly[r.Code]; only {
			by = "fail point: " + why
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Code, r.Name, r.Event, written(r.Cmd, r.Untouched),
			written(r.Doc, false), written(concernOf(r), false), read(r.Read), tailed(r.Tail), by)
	}
	b.WriteString(pageDriver)
	for _, ev := range networkEvents {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", ev.name, written(ev.want.Write, ev.want.Untouched), read(ev.want.Read), tailed(ev.want.Tail))
	}
	path := filepath.Join("..", "..", "docs", "ERRORS.md")
	if *updatePage {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Error("docs/ERRORS.md is not what the table says; go test ./internal/mongoerr -run Page -update mends it")
	}
}

// concernOf returns what a row's code means as a write concern error.
func concernOf(r mongoerr.Row) mongoerr.Write {
	return mongoerr.Classify(mongo.WriteException{WriteConcernError: &mongo.WriteConcernError{Code: r.Code}}).Write
}

func written(w mongoerr.Write, untouched bool) string {
	word := map[mongoerr.Write]string{
		mongoerr.WriteNotSent: "not applied", mongoerr.WriteUnknown: "unknown", mongoerr.WriteUncommitted: "applied",
		mongoerr.WriteDuplicate: "exists", mongoerr.WriteRejected: "refused", mongoerr.WriteStop: "stop",
	}[w]
	if w == mongoerr.WriteStop && untouched {
		word += ", not applied"
	}
	return word
}

func read(r mongoerr.Read) string {
	if r == mongoerr.ReadRetry {
		return "try again"
	}
	return "stop"
}

func tailed(t mongoerr.Tail) string {
	return map[mongoerr.Tail]string{
		mongoerr.TailReopen: "reopen", mongoerr.TailLost: "lost", mongoerr.TailGone: "gone", mongoerr.TailRefused: "stop",
	}[t]
}
