package stored

import (
	"strconv"
	"strings"
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
