// Package logging builds the process's one logger. Libraries never import it: they get a
// zerolog.Logger in their Config.
package logging

import (
	"encoding/json"
	"io"
	"regexp"
	"time"

	"github.com/rs/zerolog"
)

// Config says how to log.
type Config struct {
	// Level is trace, debug, info, warn, error or off; "" is info.
	Level string
	// Text is for people on a terminal; otherwise every event is one JSON object per line.
	Text bool
	// Color is used with Text only.
	Color bool
	// Redact is applied to every event after it is encoded (I10). nil: nothing is hidden.
	Redact func(string) string
}

// New returns a logger that writes to w, one event per Write. It is safe for concurrent use if w is.
func New(w io.Writer, c Config) zerolog.Logger {
	level, ok := map[string]zerolog.Level{
		"trace": zerolog.TraceLevel, "debug": zerolog.DebugLevel, "info": zerolog.InfoLevel, "": zerolog.InfoLevel,
		"warn": zerolog.WarnLevel, "error": zerolog.ErrorLevel, "off": zerolog.Disabled,
	}[c.Level]
	if !ok {
		level = zerolog.InfoLevel
	}
	if c.Text {
		w = zerolog.ConsoleWriter{Out: w, NoColor: !c.Color, TimeFormat: time.TimeOnly}
	}
	if c.Redact != nil {
		w = redacting{w, c.Redact}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// redacting hides secrets in whole encoded events, so that no field and no message can be forgotten.
type redacting struct {
	w      io.Writer
	redact func(string) string
}

// literal is a JSON string.
var literal = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

func (r redacting) Write(p []byte) (int, error) {
	// String by string: a password that swallows a quote must not take the next field with it.
	out := literal.ReplaceAllFunc(p, func(q []byte) []byte {
		var s string
		if json.Unmarshal(q, &s) != nil {
			return q
		}
		hidden := r.redact(s)
		if hidden == s {
			return q
		}
		b, err := json.Marshal(hidden)
		if err != nil {
			return []byte(`"***"`)
		}
		return b
	})
	if _, err := r.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil // zerolog takes another length for a short write
}
