//go:build unix && !linux

package localcluster

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// processAttr gives a server a process group of its own, see the version for Linux. There is no
// parent-death signal here: after a kill -9 of its starter a server stays, until the next Start in
// its directory, or with a temporary directory, ends it.
func processAttr(detach bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: detach, Setpgid: !detach}
}

// processServes reports whether the process was started as a server on dbpath.
func processServes(pid int, dbpath string) bool {
	return strings.Contains(ps(pid, "command="), " --dbpath "+dbpath+" --port ")
}

// States of a process as ps names them.
const (
	stateNone   = 0
	stateFrozen = 'T'
	stateZombie = 'Z'
)

func processStat(pid int) (state byte, born string) {
	s := ps(pid, "state=")
	if s == "" {
		return stateNone, ""
	}
	return s[0], ps(pid, "lstart=")
}

func processEnded(pid int, born string) bool {
	state, now := processStat(pid)
	return state == stateNone || state == stateZombie || now != born
}

// ps returns one column for one process, "" if there is none.
func ps(pid int, column string) string {
	out, err := exec.Command("ps", "-ww", "-o", column, "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
