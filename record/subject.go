package record

import (
	"errors"
	"fmt"
	"strings"
)

// ErrBadSubject says that a text is not a subject pattern.
var ErrBadSubject = errors.New("not a subject pattern (want dot-separated tokens, where * stands for one token and a last > for one or more)")

// SubjectPattern selects messages by subject: "orders.*.paid" or "orders.>". The zero SubjectPattern
// matches every message, also one without a subject. It is immutable and safe for concurrent use.
type SubjectPattern struct {
	text   string
	tokens []string
	rest   bool // the pattern ended in ">"
}

// ParseSubject reads a pattern. Tokens are separated by dots; "*" stands for exactly one token, and
// ">", as the last token only, for one or more tokens. "" is the zero SubjectPattern: everything.
// "*" and ">" inside a longer token are errors: no message has such a subject, so the pattern would
// match nothing. Errors wrap ErrBadSubject.
func ParseSubject(pattern string) (SubjectPattern, error) {
	if pattern == "" {
		return SubjectPattern{}, nil
	}
	p := SubjectPattern{text: pattern, tokens: strings.Split(pattern, ".")}
	for i, t := range p.tokens {
		switch {
		case t == "":
			return SubjectPattern{}, fmt.Errorf("%w: %q has an empty token", ErrBadSubject, pattern)
		case t == ">" && i < len(p.tokens)-1:
			return SubjectPattern{}, fmt.Errorf("%w: %q has > before its end", ErrBadSubject, pattern)
		case len(t) > 1 && strings.ContainsAny(t, "*>"):
			return SubjectPattern{}, fmt.Errorf("%w: in %q, the token %q mixes a wildcard with other characters: * is one whole token, > is the rest", ErrBadSubject, pattern, t)
		}
	}
	if last := len(p.tokens) - 1; p.tokens[last] == ">" {
		p.rest, p.tokens = true, p.tokens[:last]
	}
	return p, nil
}

// String returns the pattern as it was parsed.
func (p SubjectPattern) String() string { return p.text }

// MatchesAll reports whether p is the zero pattern, which needs no look at a message.
func (p SubjectPattern) MatchesAll() bool { return p.text == "" }

// Match reports whether subject fits the pattern. A message without a subject ("") fits the zero
// pattern only. It does not allocate.
func (p SubjectPattern) Match(subject string) bool {
	if p.text == "" {
		return true
	}
	if subject == "" {
		return false
	}
	rest, more := subject, true
	for _, want := range p.tokens {
		if !more {
			return false
		}
		var token string
		token, rest, more = strings.Cut(rest, ".")
		if token == "" || want != "*" && want != token {
			return false
		}
	}
	if p.rest {
		return more && rest != ""
	}
	return !more
}
