package failover

import (
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// adopt takes from the options what they ask of the layer: a bound for a whole call (timeoutMS), and what
// an acknowledgement means (w, journal). What would make the layer promise less than it says is refused.
// Fields of Config that are set win.
func (c Config) adopt(o *options.ClientOptions) (Config, error) {
	if t := o.Timeout; t != nil && *t > 0 && c.Budget == 0 {
		c.Budget = *t
		if c.AttemptTimeout == 0 {
			c.AttemptTimeout = min(c.Profile.Settings().AttemptTimeout, *t)
		}
	}
	wc := o.WriteConcern
	if wc == nil {
		return c, nil
	}
	if wc.Journal != nil && *wc.Journal {
		c.Journal = true
	}
	switch {
	case wc.W == nil, wc.W == writeconcern.WCMajority:
	case wc.W == 1 && c.WriteConcern == One:
	case wc.W == 1:
		return c, fmt.Errorf("the connection string's w=1 asks for less than the layer promises (w=majority): leave it out, or set field WriteConcern to One")
	default:
		return c, fmt.Errorf("the connection string's w=%v cannot be honoured: the layer writes with w=majority, or with w=1 if field WriteConcern is One", wc.W)
	}
	return c, nil
}

// override sets what the layer must decide by itself, and returns what the caller had asked for instead:
// for the log, once the layer connects.
func override(o *options.ClientOptions, c Config) (overridden []string) {
	note := func(name string, asked, used any) {
		overridden = append(overridden, fmt.Sprintf("%s=%v (used: %v)", name, asked, used))
	}
	if o.RetryWrites != nil && *o.RetryWrites {
		note("retryWrites", true, false)
	}
	if o.RetryReads != nil && *o.RetryReads {
		note("retryReads", true, false)
	}
	o.SetRetryWrites(false).SetRetryReads(false)
	if o.Timeout != nil && *o.Timeout != c.Budget {
		note("timeoutMS", o.Timeout.Milliseconds(), c.Budget.Milliseconds())
	}
	o.Timeout = nil // every attempt has a deadline of its own
	if t := o.HeartbeatInterval; t != nil && *t != heartbeatInterval {
		note("heartbeatFrequencyMS", t.Milliseconds(), heartbeatInterval.Milliseconds())
	}
	o.SetHeartbeatInterval(heartbeatInterval)
	o.SetServerSelectionTimeout(bounded("serverSelectionTimeoutMS", o.ServerSelectionTimeout, c.AttemptTimeout, note))
	o.SetConnectTimeout(bounded("connectTimeoutMS", o.ConnectTimeout, max(c.AttemptTimeout, connectTimeout), note))
	o.WriteConcern = nil // every insert carries its own
	return overridden
}

// bounded returns asked, or limit where it is longer, or 0 ("no limit" to the driver), or not given.
func bounded(name string, asked *time.Duration, limit time.Duration, note func(name string, asked, used any)) time.Duration {
	if asked == nil {
		return limit
	}
	if *asked <= 0 || *asked > limit {
		note(name, asked.Milliseconds(), limit.Milliseconds())
		return limit
	}
	return *asked
}

// sayOverridden logs, when the layer connects, what of the connection string is not done.
func (l *Layer) sayOverridden() {
	if len(l.overridden) > 0 {
		l.cfg.Logger.Info().Str("options", strings.Join(l.overridden, ", ")).Msg("options of the connection string that the failover layer decides by itself")
	}
}
