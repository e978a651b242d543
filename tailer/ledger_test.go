package tailer

import (
	"fmt"
	"testing"

	"github.com/seed-12ef14e5/capstan/record"
	"pgregory.net/rapid"
)

// I5: whatever is overwritten, whenever, and however the stream is cut into batches: per src,
// delivered + lost = sent, nothing twice, nothing out of order.
func TestTheLedgerAccountsForEveryMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		srcs := rapid.IntRange(1, 4).Draw(t, "srcs")
		l := ledger{marks: newMarks(100, nil), birth: true}
		sent, delivered, lost := map[string]int64{}, map[string]int64{}, map[string]int64{}
		deliver := func(batch []record.Record) {
			for i := range batch {
				r := &batch[i]
				v := l.judge(r)
				if v == seen {
					continue
				}
				if v == hole && l.pending == nil {
					l.lose(record.CauseRollover, record.Position{}, record.Timestamp{}, false)
				}
				if l.due(v) {
					for _, x := range l.gap(batch[i:]).Lost {
						if !x.Exact || x.From != delivered[x.Src]+lost[x.Src]+1 {
							t.Fatalf("lost %+v after %d", x, delivered[x.Src]+lost[x.Src])
						}
						lost[x.Src] += x.Count()
					}
				}
				if l.judge(r) != fresh || r.Seq != delivered[r.Src]+lost[r.Src]+1 {
					t.Fatalf("%s %d is delivered after %d + %d", r.Src, r.Seq, delivered[r.Src], lost[r.Src])
				}
				l.pass(r)
				delivered[r.Src]++
			}
		}
		var stream []record.Record
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			n := rapid.IntRange(1, 10).Draw(t, "n")
			for range n {
				src := fmt.Sprint("s", rapid.IntRange(1, srcs).Draw(t, "src"))
				sent[src]++
				stream = append(stream, record.Record{Src: src, Seq: sent[src], Position: record.Position{TS: record.Timestamp{T: uint32(len(stream) + 1)}}})
			}
			switch rapid.SampledFrom([]string{"read", "overwrite", "overlap", "settle"}).Draw(t, "what") {
			case "overwrite":
				stream = stream[rapid.IntRange(0, len(stream)-1).Draw(t, "evicted"):]
				if rapid.Bool().Draw(t, "noticed") {
					l.lose(record.CauseRollover, record.Position{}, record.Timestamp{}, false)
				}
			case "overlap": // a batch is read again
				deliver(stream)
				deliver(stream[rapid.IntRange(0, len(stream)-1).Draw(t, "from"):])
			case "settle":
				deliver(stream)
				l.settle()
				stream = nil
			case "read":
				deliver(stream)
			}
			if len(stream) == 0 {
				stream = nil
			}
		}
		for src := range sent { // each has a last message that stays
			sent[src]++
			stream = append(stream, record.Record{Src: src, Seq: sent[src]})
		}
		deliver(stream)
		for src := range sent {
			if delivered[src]+lost[src] != sent[src] {
				t.Fatalf("%s: delivered %d + lost %d, sent %d", src, delivered[src], lost[src], sent[src])
			}
		}
	})
}

func TestMarksForgetTheSrcThatWasSilentForLongest(t *testing.T) {
	m := newMarks(2, nil)
	m.set("a", 1, record.Timestamp{})
	m.set("b", 1, record.Timestamp{})
	m.set("a", 2, record.Timestamp{})
	m.set("c", 1, record.Timestamp{})
	if _, ok := m.get("b"); ok || !m.forgot || m.len() != 2 {
		t.Fatal("b is still known")
	}
	m.set("a", 1, record.Timestamp{})
	if n, _ := m.get("a"); n != 2 {
		t.Fatalf("a mark went back to %d", n)
	}
}

// Rule 3: only what is confirmed, or stands before everything that is not, is visible.
func TestTheVisiblePrefixEndsBeforeTheFirstSrcThatIsNotConfirmed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var batch []record.Record
		seqs := map[string]int64{}
		for range rapid.IntRange(1, 20).Draw(t, "n") {
			r := record.Record{Position: record.Position{ID: record.NewID()}}
			if src := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "src"); src != "" {
				seqs[src]++
				r.Src, r.Seq = src, seqs[src]
			}
			batch = append(batch, r)
		}
		ask := lastPerSrc(batch)
		for id := range ask {
			if rapid.Bool().Draw(t, "confirmed") {
				delete(ask, id)
			}
		}
		n := visible(batch, ask)
		waits := func(r record.Record) bool {
			for id, src := range ask {
				if r.Position.ID == id || src != "" && src == r.Src {
					return true
				}
			}
			return false
		}
		for i, r := range batch {
			if i < n && waits(r) || i == n && !waits(r) {
				t.Fatalf("prefix %d of %d, message %d waits: %v", n, len(batch), i, waits(r))
			}
		}
	})
}

func TestTheRingOfRecentIdsKeepsTheNewest(t *testing.T) {
	var r recent
	ids := make([]record.ID, maxRecent+10)
	for i := range ids {
		ids[i] = record.NewID()
		r.add(ids[i])
	}
	if r.has(ids[9]) || !r.has(ids[10]) || r.late(ids[10]) || !r.late(ids[len(ids)-1]) {
		t.Fatal("the ring holds the wrong ids")
	}
	if last := r.last(3); len(last) != 3 || last[0] != ids[len(ids)-1] || last[2] != ids[len(ids)-3] {
		t.Fatal("the newest ids are wrong")
	}
}

func TestNewChecksItsArgumentsAndDoesNothingElse(t *testing.T) {
	o := testOptions()
	if _, err := New(o, "db", "c", Config{}); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"await": {Await: 1}, "long await": {Await: 2 * MaxAwait}, "attempt": {AttemptTimeout: -1},
		"overlap": {Overlap: 1}, "batch": {BatchSize: -1}, "marks": {MaxMarks: -1}, "subject": {Subject: "a..b"},
		"where": {Start: record.Start{Where: 99}}, "gap": {OnGap: 9}, "outage": {MaxOutage: -1},
	} {
		if _, err := New(o, "db", "c", cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, ns := range [][2]string{{"", "c"}, {"db", ""}, {"a.b", "c"}, {"db", "a$b"}} {
		if _, err := New(o, ns[0], ns[1], Config{}); err == nil {
			t.Errorf("%v: no error", ns)
		}
	}
	if _, err := New(nil, "db", "c", Config{}); err == nil {
		t.Error("nil options: no error")
	}
}
