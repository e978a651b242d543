package stored

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// OwnerGone reports whether owner is "HOST pid N …" with this machine's name host, and that process is certainly gone. Without a host
// no owner is known to be of this machine.
func OwnerGone(owner, host string) bool {
	f := strings.Fields(owner)
	if len(f) < 3 || f[1] != "pid" || host == "" || f[0] != host {
		return false
	}
	pid, err := strconv.Atoi(f[2])
	return err == nil && pid > 0 && gone(pid)
}

// looksPerLease is how often a lease is looked at.
const looksPerLease = 10

// Await watches, for a lease, whether the holder of what is stored lives, which its revision shows: no clock of one machine is compared
// with another's. look returns what is stored now, and whether anything is. The error is *replicator.BusyError when the holder moves, gone
// when it has given the route up or somebody else has it (look at it anew), nil when it has stood still.
func Await(ctx context.Context, lease time.Duration, cur State, gone error, look func(context.Context) (now State, found bool, err error)) error {
	end := time.Now().Add(lease)
	tick := time.NewTicker(max(time.Millisecond, lease/looksPerLease))
	defer tick.Stop()
	for time.Now().Before(end) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, found, err := look(ctx)
		switch {
		case err != nil:
			return err
		case !found || now.Owner != cur.Owner || now.Clean:
			return gone
		case now.Revision != cur.Revision:
			return &replicator.BusyError{Route: cur.Route, Owner: now.Owner, Updated: now.Updated.UTC()}
		}
	}
	return nil
}
