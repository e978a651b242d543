package config

import (
	"strings"
	"testing"
)

func TestRedactHidesPasswordsAndShowsTheRest(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"mongodb://u:p@h1,h2:27018/db?replicaSet=rs":                "mongodb://u:***@h1,h2:27018/db?replicaSet=rs",
		"mongodb+srv://u:p@cluster.example.net":                     "mongodb+srv://u:***@cluster.example.net",
		"MongoDB://u:p@h":                                           "MongoDB://u:***@h",
		"mongodb://u:p%40%3A%2F@h":                                  "mongodb://u:***@h",
		"mongodb://u:p@:/@h":                                        "mongodb://u:***@h",
		"mongodb://u:p w\"'@h":                                      "mongodb://u:***@h",
		"mongodb://us er:p@h":                                       "mongodb://***@h",
		"mongodb://u:p@[::1]:27017":                                 "mongodb://u:***@[::1]:27017",
		"mongodb://[::1]:27017/":                                    "mongodb://[::1]:27017/",
		"mongodb://h:27017,i:27018/db":                              "mongodb://h:27017,i:27018/db",
		"mongodb://h":                                               "mongodb://h",
		"mongodb://u:secret":                                        "mongodb://u:***",
		"mongodb://CN=me@h":                                         "mongodb://***@h",
		"mongodb://me@h":                                            "mongodb://me@h",
		`from mongodb://a:b@c to "mongodb://d:e@f": no`:             `from mongodb://a:***@c to "mongodb://d:***@f": no`,
		"mongodb://h/?tlsCertificateKeyFilePassword=x&appName=a":    "mongodb://h/?tlsCertificateKeyFilePassword=***&appName=a",
		"mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:x/": "mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:***",
		"nothing to hide":                                           "nothing to hide",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}

// FuzzRedactedTextDoesNotDependOnThePassword cites I10: whatever a password is, and wherever its
// connection string stands, what is printed is the same as for another password.
func FuzzRedactedTextDoesNotDependOnThePassword(f *testing.F) {
	for _, s := range [][4]string{
		{"u", "p", "h", ""}, {"u", "p@:/ ", "h1,h2/db", "dial "}, {"", "@", "h", "\""}, {"a:b", "?&=%", "h", "auth error: sasl: "},
		{"u", "tlsCertificateKeyFilePassword=", "h", ""}, {"u", "\n", "[::1]:1", ""},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, user, password, host, before string) {
		lower := strings.ToLower(user + password)
		if strings.Contains(lower, "mongodb") || strings.ContainsAny(host, "@") || host == "" {
			t.Skip("documented: a scheme inside; and what stands behind the last @ is no password")
		}
		text := func(p string) string { return before + "mongodb://" + user + ":" + p + "@" + host }
		if a, b := Redact(text(password)), Redact(text("xyzzy")); a != b {
			t.Errorf("Redact tells passwords apart:\n%q\n%q", a, b)
		}
		if again := Redact(Redact(text(password))); again != Redact(text(password)) {
			t.Errorf("Redact is not idempotent: %q", again)
		}
	})
}
