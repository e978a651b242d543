package tailer

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// logEvery limits how often a lasting outage is logged.
const logEvery = 10 * time.Second

// outage is the state of a series of failures.
type outage struct {
	since     time.Time
	logged    time.Time
	connected bool // at least one session was opened
}

// endurance says how long a source goes on through failures.
type endurance struct {
	ns              string
	connect, outage time.Duration // the first connection, a later outage; an outage of 0 is endless
	logger          zerolog.Logger
	onReopen        func(reason string)
}

// failed decides what a failure of the server or the network means after opened (or not) a session. A nil
// error means: open again.
func (e endurance) failed(err error, why string, opened bool, out *outage, attempts int) error {
	if mongoerr.BadCredentials(err) && !out.connected {
		return fmt.Errorf("tail %s: %w", e.ns, err)
	}
	if opened {
		e.logger.Info().Str("reason", why).Err(err).Msg("the tail ended; opening it again")
		call(e.onReopen, why)
		out.since = time.Now() // should this be an outage, then it began here and not with the first failed opening
		return nil
	}
	now := time.Now()
	if out.since.IsZero() {
		out.since = now
	}
	down := now.Sub(out.since)
	if !out.connected && down >= e.connect {
		return fmt.Errorf("connect to tail %s: %w", e.ns, err)
	}
	if out.connected && e.outage > 0 && down >= e.outage {
		return &OutageError{Namespace: e.ns, For: down, Attempts: attempts + 1, Err: err}
	}
	if now.Sub(out.logged) >= logEvery {
		out.logged = now
		level := zerolog.WarnLevel
		if !out.connected {
			level = zerolog.DebugLevel // Next returns the error, if it lasts
		}
		e.logger.WithLevel(level).Str("reason", why).Err(err).Dur("for", down).Int("attempts", attempts+1).Msg("the tail cannot be opened; trying on")
	}
	call(e.onReopen, why)
	return nil
}
