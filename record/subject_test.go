package record

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestSubjectPatternMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"", "", true}, {"", "a.b", true},
		{"a", "a", true}, {"a", "", false}, {"a", "a.b", false}, {"a.b", "a", false},
		{"*", "a", true}, {"*", "a.b", false}, {"*", "", false},
		{"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*", "a.b.c", false}, {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false},
		{">", "a", true}, {">", "a.b.c", true}, {">", "", false},
		{"a.>", "a", false}, {"a.>", "a.b", true}, {"a.>", "a.b.c", true}, {"a.>", "b.c", false},
		{"a.*.>", "a.b.c", true}, {"a.*.>", "a.b", false},
		{"a.>", "a.", false}, {"*.b", ".b", false},
		{"ä.*", "ä.ö", true},
	} {
		p, err := ParseSubject(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(c.subject); got != c.want {
			t.Errorf("%q matches %q: got %v, want %v", c.pattern, c.subject, got, c.want)
		}
		if p.String() != c.pattern || p.MatchesAll() != (c.pattern == "") {
			t.Errorf("%q prints as %q, matches all: %v", c.pattern, p, p.MatchesAll())
		}
	}
}

func TestABadSubjectPatternIsRefusedWithAReason(t *testing.T) {
	for _, s := range []string{".", "a.", ".a", "a..b", ">.a", "a.>.b", "or*", "a.*b", "a.b>", "**"} {
		if _, err := ParseSubject(s); !errors.Is(err, ErrBadSubject) || !strings.Contains(err.Error(), s) {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

// The obvious slow matcher: the fast one must agree with it.
func TestSubjectPatternAgreesWithItsDefinition(t *testing.T) {
	token := rapid.SampledFrom([]string{"a", "b", "*", ">", "ab"})
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(token, 1, 4).Draw(t, "pattern"), ".")
		subject := strings.Join(rapid.SliceOfN(token, 1, 5).Draw(t, "subject"), ".")
		p, err := ParseSubject(pattern)
		if err != nil {
			return
		}
		want := true
		ps, ss := strings.Split(pattern, "."), strings.Split(subject, ".")
		for i, tok := range ps {
			if tok == ">" {
				want = want && len(ss) > i
				ps, ss = ps[:i], ss[:min(i, len(ss))]
				break
			}
			want = want && i < len(ss) && (tok == "*" || tok == ss[i])
		}
		want = want && len(ps) == len(ss)
		if got := p.Match(subject); got != want {
			t.Fatalf("%q matches %q: got %v, want %v", pattern, subject, got, want)
		}
	})
}

func TestMatchingASubjectDoesNotAllocate(t *testing.T) {
	p, _ := ParseSubject("orders.*.paid.>")
	if n := testing.AllocsPerRun(100, func() { p.Match("orders.7.paid.in.full") }); n != 0 {
		t.Fatalf("got %v allocations", n)
	}
}

func TestAnOwnedRecordSharesNothingWithTheReply(t *testing.T) {
	doc, err := bson.Marshal(bson.D{
		{Key: "_id", Value: bson.NewObjectID()}, {Key: "src", Value: "a/1"},
		{Key: "seq", Value: int64(1)}, {Key: "subject", Value: "x.y"}, {Key: "data", Value: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode(doc, make(Interner))
	if err != nil {
		t.Fatal(err)
	}
	r = r.Own()
	want := string(doc)
	clear(doc)
	if string(r.Raw) != want || r.Subject != "x.y" || r.Src != "a/1" {
		t.Fatalf("got %q %q %q", r.Raw, r.Subject, r.Src)
	}
	r.Raw, r.Subject = nil, "elsewhere"
	if o := r.Own(); o.Subject != "elsewhere" || o.Raw != nil {
		t.Fatalf("got %q", o.Subject)
	}
	in := make(Interner)
	in.String([]byte("a/1"))
	whole := bson.Raw(want)
	if n := testing.AllocsPerRun(100, func() {
		r, _ := Decode(whole, in)
		sink = r.Own()
	}); n > 1 {
		t.Fatalf("decoding and owning a message allocates %v times, want only the copy", n)
	}
}

var sink Record
