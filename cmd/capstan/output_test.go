package main

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

func message(t *testing.T, doc bson.D) record.Record {
	t.Helper()
	b, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Decode(b, record.Interner{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFormats(t *testing.T) {
	t.Parallel()
	id := bson.ObjectID{0x69, 11: 0x18}
	ours := func(data any) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "time", Value: int64(1764532800123456)}, {Key: "src", Value: "p/x"}, {Key: "seq", Value: int64(1)},
			{Key: "ts", Value: bson.Timestamp{T: 1764532800, I: 7}}, {Key: "subject", Value: "a.b"}, {Key: "data", Value: data}}
	}
	const pos = "1764532800.7-690000000000000000000018"
	for _, c := range []struct {
		name, form, want string
		doc              bson.D
	}{
		{"text", "text", "2025-11-30T20:00:00.123456Z\ta.b\thello\n", ours("hello")},
		{"text of a document", "text", "2025-11-30T20:00:00.123456Z\ta.b\t{\"x\":1}\n", ours(bson.D{{Key: "x", Value: int32(1)}})},
		{"text cannot forge a line or move the cursor", "text", "2025-11-30T20:00:00.123456Z\ta.b\t\"a\\n\\x1b[2J\"\n", ours("a\n\x1b[2J")},
		{"raw text", "raw", "a\n\x1b[2J\n", ours("a\n\x1b[2J")},
		{"raw array", "raw", "[1,\"<&>\"]\n", ours(bson.A{int32(1), "<&>"})},
		{"raw without data", "raw", "null\n", ours(nil)[:6]},
		{"json", "json", `{"position":"` + pos + `","_id":{"$oid":"690000000000000000000018"},"time":1764532800123456,"src":"p/x","seq":1,` +
			`"ts":{"$timestamp":{"t":1764532800,"i":7}},"subject":"a.b","data":"x"}` + "\n", ours("x")},
		{"another program's document", "raw", "{\"_id\":1,\"n\":2}\n", bson.D{{Key: "_id", Value: int32(1)}, {Key: "n", Value: int32(2)}}},
	} {
		f, err := newFormat(c.form, false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f(nil, message(t, c.doc))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.name, err, got, c.want)
		}
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]record.Start{
		"earliest":             {Where: record.Earliest},
		"latest":               {Where: record.Latest},
		"-10m":                 {Where: record.AtTime, Time: now.Add(-10 * time.Minute)},
		"2026-11-30T11:00:00Z": {Where: record.AtTime, Time: now.Add(-time.Hour)},
		"-1d":                  {Where: record.AtTime, Time: now.AddDate(0, 0, -1)},
		"-1d12h":               {Where: record.AtTime, Time: now.Add(-36 * time.Hour)},
		"2026-11-30":           {Where: record.AtTime, Time: now.Add(-12 * time.Hour)},
		"2026-11-30 11:00":     {Where: record.AtTime, Time: now.Add(-time.Hour)},
	} {
		got, err := parseStart(in, now)
		if err != nil || got.Where != want.Where || !got.Time.Equal(want.Time) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	got, err := parseStart("1764532800.7-692c9e80a1b2c3d4e5f60718", now)
	if err != nil || got.Where != record.After || got.Position.String() != "1764532800.7-692c9e80a1b2c3d4e5f60718" {
		t.Errorf("position: %+v, %v", got, err)
	}
	for _, in := range []string{"", "tomorrow", "-10", "10m", "-d", "-1d-2h", "-99999999d", "30.11.2026", "2026-11-30 25:00", "1.2"} {
		if _, err := parseStart(in, now); exitCode(err) != exitUsage {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestUntilIsInclusiveForPositionsAndExclusiveForTimes(t *testing.T) {
	t.Parallel()
	at := func(sec uint32, id byte) record.Record {
		return record.Record{Position: record.Position{TS: record.Timestamp{T: sec, I: 1}, ID: record.ObjectID(bson.ObjectID{id})}}
	}
	byPos := until{pos: at(100, 5).Position}
	if byPos.beyond(at(100, 4)) || byPos.last(at(100, 4)) || !byPos.last(at(100, 5)) || byPos.beyond(at(101, 6)) || !byPos.beyond(at(111, 7)) {
		t.Error("a position ends with its message, or clearly behind it")
	}
	byTime := until{at: time.Unix(100, 0)}
	if byTime.beyond(at(99, 1)) || !byTime.beyond(at(100, 1)) || byTime.last(at(99, 1)) {
		t.Error("a time ends before its second")
	}
	if (until{}).set() || (until{}).beyond(at(1<<31, 1)) || !byTime.past(time.Unix(100, 0)) || byTime.past(time.Unix(99, 0)) {
		t.Error("no until never ends")
	}
}

func TestSizesNeedAUnit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{"100MB": 100_000_000, "64MiB": 64 << 20, "1 GB": 1_000_000_000, "5kb": 5000} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "100", "MB", "-5MB", "0MB", "9999999TB", "5 apples"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("%q is accepted as %d", in, got)
		}
	}
}

func TestTheNearestFlagIsNear(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		d    int
	}{{"from", "form", 2}, {"count", "cuont", 2}, {"a", "", 1}, {"", "", 0}, {"same", "same", 0}, {"kitten", "sitting", 3}} {
		if got := distance(c.a, c.b); got != c.d {
			t.Errorf("distance(%s, %s) = %d, want %d", c.a, c.b, got, c.d)
		}
	}
}

func TestProducerNamesHaveNoSlash(t *testing.T) {
	t.Parallel()
	if got := producerName(produceOptions{durable: "a/b"}); strings.Contains(got, "/") {
		t.Errorf("got %q", got)
	}
}
