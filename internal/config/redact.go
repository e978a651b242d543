package config

import (
	"regexp"
	"strings"
)

// hidden replaces a secret.
const hidden = "***"

var (
	scheme = regexp.MustCompile(`(?i)mongodb(?:\+srv)?://`)
	// Options of a connection string whose value is a secret.
	secretOption = regexp.MustCompile(`(?i)((?:tlsCertificateKeyFilePassword|sslClientCertificateKeyPassword|sslPEMKeyPassword|proxyPassword|AWS_SESSION_TOKEN)(?:=|:|%3A))[^&,;\s"']+`)
	plainUser    = regexp.MustCompile(`^[A-Za-z0-9._%+-]+$`)
)

// Redact hides the passwords of all MongoDB connection strings in text, which may be a connection
// string itself, an error of the driver, a log line or a panic. It is the only redaction in capstan
// and everything that is printed goes through it (I10).
//
// It rather hides too much than too little: a password may hold any character, also @, :, / and
// blanks that nobody encoded, so everything from the scheme to the last @ before the next scheme (or
// the end of the text) is taken for user and password. What is shown depends on nothing inside the
// password, except one that contains "mongodb://" itself.
func Redact(text string) string {
	at := scheme.FindAllStringIndex(text, -1)
	if at == nil {
		return secretOption.ReplaceAllString(text, "${1}"+hidden)
	}
	var b strings.Builder
	b.WriteString(text[:at[0][0]])
	for i, loc := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		b.WriteString(text[loc[0]:loc[1]])
		b.WriteString(redactBehindScheme(text[loc[1]:end]))
	}
	return secretOption.ReplaceAllString(b.String(), "${1}"+hidden)
}

func redactBehindScheme(s string) string {
	i := strings.LastIndexByte(s, '@')
	if i < 0 {
		return redactPort(s)
	}
	user, _, ok := strings.Cut(s[:i], ":")
	switch {
	case ok && plainUser.MatchString(user):
		return user + ":" + hidden + s[i:] // the user's name helps to find the mistake
	case !ok && plainUser.MatchString(s[:i]):
		return s // a name without a password (certificates, Kerberos)
	}
	return hidden + s[i:]
}

// redactPort hides what stands in a port's place and is no number: "mongodb://user:password" where
// someone forgot the host.
func redactPort(s string) string {
	end := strings.IndexAny(s, "/?, \t\r\n\"'")
	if end < 0 {
		end = len(s)
	}
	i := strings.IndexByte(s[:end], ':')
	if i < 0 || strings.HasPrefix(s, "[") { // an IPv6 address
		return s
	}
	if strings.Trim(s[i+1:end], "0123456789") == "" || strings.Trim(s[i+1:end], "0123456789") == ":" {
		return s
	}
	return s[:i+1] + hidden + s[end:]
}
