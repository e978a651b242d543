package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestEveryEventIsOneJSONObjectPerLineWithoutSecrets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := New(&out, Config{Level: "debug", Redact: func(s string) string { return strings.ReplaceAll(s, `se"cret`, "***") }})
	log.Debug().Str("uri", `x se"cret y`).Err(errors.New(`se"cret`)).Str("next", "kept").Msg(`a se"cret b`)
	log.Trace().Msg("too fine")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 1 {
		t.Fatalf("got %d lines: %s", len(lines), out.String())
	}
	var e map[string]string
	if err := json.Unmarshal([]byte(lines[0]), &e); err != nil {
		t.Fatalf("%v: %s", err, lines[0])
	}
	if e["uri"] != "x *** y" || e["error"] != "***" || e["next"] != "kept" || e["message"] != "a *** b" {
		t.Errorf("got %v", e)
	}
}

func TestTextIsForPeople(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := New(&out, Config{Text: true})
	log.Info().Str("k", "v").Msg("hello")
	if s := out.String(); !strings.Contains(s, "hello") || !strings.Contains(s, "k=v") || strings.Contains(s, "\x1b") {
		t.Errorf("got %q", s)
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]zerolog.Level{"": zerolog.InfoLevel, "error": zerolog.ErrorLevel, "off": zerolog.Disabled, "no such": zerolog.InfoLevel} {
		if got := New(&bytes.Buffer{}, Config{Level: name}).GetLevel(); got != want {
			t.Errorf("level %q is %v, want %v", name, got, want)
		}
	}
}
