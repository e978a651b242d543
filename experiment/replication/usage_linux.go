package replication

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is Linux's USER_HZ, which is 100 on every architecture that Go runs on.
const ticksPerSecond = 100

// usage is what a process has used.
type usage struct {
	cpu time.Duration // user and system
	rss int64         // the most resident memory, in bytes
}

// use returns what a running process has used so far; nothing of one that is gone.
func use(pid int) usage {
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	u := usage{}
	if b, err := os.ReadFile(dir + "stat"); err == nil {
		// The second field is the name in parentheses, which may hold blanks: count from its end.
		if fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(fields) > 12 {
			user, _ := strconv.ParseInt(fields[11], 10, 64)
			system, _ := strconv.ParseInt(fields[12], 10, 64)
			u.cpu = time.Duration(user+system) * time.Second / ticksPerSecond
		}
	}
	if b, err := os.ReadFile(dir + "status"); err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				u.rss = kib << 10
			}
		}
	}
	return u
}

// dieWithParent makes the kernel end a child whose parent was killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
