package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

func preflightReport() mongodb.Report {
	return mongodb.Report{
		Source: replicator.Identity{SetName: "rs0", SetID: "abc", Version: "6.0.5"}, Collections: 2, Documents: 1_234_567, Bytes: 1 << 30,
		ReadRate: 1 << 20, CopyTime: 17 * time.Minute, OplogWindow: time.Hour,
		Findings: []mongodb.Finding{
			{Severity: mongodb.SeverityBlocker, Code: mongodb.CodeNotEmpty, Namespace: "shop.a", Text: "it has documents", Do: "empty it"},
			{Severity: mongodb.SeverityWarning, Code: mongodb.CodeTimeseries, Namespace: "shop.\x1b[2Jb", Text: "at mongodb://u:secret@h/: no"},
			{Severity: mongodb.SeverityOK, Code: mongodb.CodeSource, Text: "all is well"},
		},
	}
}

func TestAPreflightIsPrintedForPeopleAndForPrograms(t *testing.T) {
	t.Parallel()
	show := func(r mongodb.Report, format string) string {
		var out, diag bytes.Buffer
		env := newEnviron(nil, &out, &diag, func(string) string { return "" })
		if err := printPreflight(env, r, format); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "secret") {
			t.Errorf("a password is printed: %s", out.String())
		}
		return out.String()
	}
	text := show(preflightReport(), outputText)
	for _, want := range []string{"BLOCKER  not-empty  shop.a\n         it has documents\n         -> empty it\n", "1,234,567 documents, 1.0 GiB", "reaches back 1h0m0s", "1 blockers, 1 warnings, 0 notes", "would not start"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("a name moves the terminal's cursor")
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(show(preflightReport(), outputJSON)), &got); err != nil {
		t.Fatal(err)
	}
	if got["blocked"] != true || got["copy_seconds"] != 1020.0 || got["oplog_window_seconds"] != 3600.0 || len(got["findings"].([]any)) != 3 || got["target"] != nil {
		t.Errorf("the JSON is %v", got)
	}
	if empty := show(mongodb.Report{}, outputJSON); !strings.Contains(empty, `"findings":[]`) {
		t.Errorf("without findings: %s", empty)
	}
	if !strings.Contains(show(mongodb.Report{}, outputText), "the route can start") {
		t.Error("nothing blocks, and that is not said")
	}
	if err := printPreflight(newEnviron(nil, &bytes.Buffer{}, &bytes.Buffer{}, func(string) string { return "" }), mongodb.Report{}, "yaml"); err == nil {
		t.Error("an unknown format is taken")
	}
}
