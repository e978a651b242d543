package archtest

import (
	"maps"
	"slices"
	"testing"
)

// repeats says which files repeat anything with internal/retry, and what. A write of a document is repeated by
// failover alone: there, an unknown outcome is resolved and not guessed, in one place.
var repeats = map[string]string{
	"failover/attempt.go":               "writes, reads and the steps of others, until their outcome is known",
	"stream/stream.go":                  "looking at a collection, creating and converting it; of documents only the primer, whose _id is fixed and whose content means nothing",
	"tailer/loop.go":                    "opening a cursor, which reads",
	"replicator/link.go":                "phases of a route, after an error that may pass; every write in them is repeated by failover",
	"tailer/changes_loop.go":            "opening a change stream, which reads",
	"tailer/majority.go":                "asking whether a majority has a message, which reads",
	"verify/side.go":                    "commands that read",
	"verify/order.go":                   "reading a collection from its oldest document, when its cursor broke",
	"consumer/worker.go":                "calls of a handler, and of a store of dead letters that has given up: a worker may not go on without",
	"consumer/saver.go":                 "saving a position that has moved on since: each time a new call of the store",
	"replicator/stream_run.go":          "calls of a stream route's ends that have given up for now; a write's unknown outcome is looked up at the destination before the next one",
	"internal/lockedfile/lockedfile.go": "taking the lock of a file",
	"localcluster/launch.go":            "looking whether a server is there",
	"localcluster/process.go":           "looking whether a process has ended",
	"localcluster/start.go":             "initiating a replica set and looking at it, which is no document",
	"internal/daemon/unit.go":           "beginning a route again that has failed: a new run of its link",
	"cmd/capstan/consume_child.go":      "starting a child process again",
}

func TestOnlyFailoverRepeatsWrites(t *testing.T) {
	missing := maps.Clone(repeats)
	for _, s := range sources(t) {
		if s.test || !slices.Contains(s.imports(), module+"/internal/retry") {
			continue
		}
		if repeats[s.path] == "" {
			t.Errorf("%s imports internal/retry: documents are written and read through package failover; if it repeats something else, say here what", s.path)
		}
		delete(missing, s.path)
	}
	for path := range missing {
		t.Errorf("%s has a reason to repeat something and does not: take it out of the table", path)
	}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, path := range s.imports() {
			if path == "github.com/cenkalti/backoff/v4" && s.pkg != "internal/retry" {
				t.Errorf("%s imports %s: waits between attempts come from internal/retry", s.path, path)
			}
		}
	}
}
