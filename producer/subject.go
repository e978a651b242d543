package producer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-12ef14e5/capstan/record"
)

// CheckSubject returns nil if messages may be published under subject, else an error that says why not:
// for a program that is told the subject once and wants to know before it has a message. It does no I/O.
func CheckSubject(subject string) error {
	if why := checkSubject(subject); why != "" {
		return &InvalidError{Field: record.FieldSubject, Reason: why}
	}
	return nil
}

// checkSubject returns "" if messages may be published under s, or a phrase that says why not.
// "" is no subject and is fine. A subject is dot-separated tokens without spaces, control characters and
// the wildcards "*" and ">": those belong to patterns, and a message under one could not be told from a
// pattern that matches it.
func checkSubject(s string) string {
	if s == "" {
		return ""
	}
	token, ascii := 0, true // token is where the current one starts
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '.':
			if i == token {
				return emptyToken
			}
			token = i + 1
		case c == '*' || c == '>':
			return "contains a wildcard, which belongs in a pattern and not in a message"
		case c <= ' ' || c == 0x7f:
			return spaceInside
		case c >= utf8.RuneSelf:
			ascii = false // its bytes are none of the above; judged below
		}
	}
	switch {
	case token == len(s):
		return emptyToken
	case ascii:
		return ""
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return spaceInside
	}
	return ""
}

const (
	emptyToken  = "has an empty token: want tokens separated by single dots"
	spaceInside = "contains a space or control character"
)
