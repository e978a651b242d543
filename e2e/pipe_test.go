package e2e

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// The first thing that anyone tries: numbers in at one end, the same numbers in the same order out of
// the other, while they come.
func TestLinesComeOutAsTheyWentIn(t *testing.T) {
	d := mongotest.ReplicaSet(t)
	name := d.DB(t).Name() + ".lines"
	count := sized(20_000, 200_000)
	var in, out bytes.Buffer
	for n := range count {
		_, _ = fmt.Fprintln(&in, n+1)
	}
	want := bytes.Clone(in.Bytes())
	tail := start(t, d.URI, nil, &out, "tail", name, "--from", "earliest", "--output", "raw", "--count", fmt.Sprint(count))
	produce := start(t, d.URI, &in, nil, "produce", name, "--create")
	produce.wait(t)
	tail.wait(t)
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%d bytes went in, %d came out, or they differ", len(want), out.Len())
	}
	t.Logf("%d lines; produce said:\n%s", count, produce.stderr.String())
}
