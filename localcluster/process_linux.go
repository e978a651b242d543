package localcluster

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processAttr puts a server into a process group of its own, so that Ctrl-C in a terminal reaches
// capstan only, which then stops the servers in order. A server that must not outlive its starter
// gets the parent-death signal (see spawner); SIGKILL, because a frozen one must die too.
func processAttr(detach bool) *syscall.SysProcAttr {
	if detach {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// processServes reports whether the process was started as a server on dbpath.
func processServes(pid int, dbpath string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	args := strings.Split(string(b), "\x00")
	for i, a := range args[1:] {
		if args[i] == "--dbpath" && a == dbpath {
			return true
		}
	}
	return false
}

// States of a process as the kernel names them.
const (
	stateNone   = 0
	stateFrozen = 'T'
	stateZombie = 'Z'
	stateDead   = 'X'
)

// processStat returns the state letter of a process and when it started (in the kernel's ticks);
// stateNone if there is no such process.
func processStat(pid int) (state byte, born string) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stateNone, ""
	}
	// The name in parentheses may itself contain parentheses and spaces.
	_, rest, ok := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), ") ")
	fields := strings.Fields(rest)
	const startTime = 19 // counted from the state, see proc(5)
	if !ok || len(fields) <= startTime {
		return stateNone, ""
	}
	return fields[0][0], fields[startTime]
}

// processEnded reports whether a process is gone, or is a zombie none of whose threads is left: only
// then are its port and its file locks free. A zombie alone says merely that the main thread ended.
func processEnded(pid int, born string) bool {
	switch state, now := processStat(pid); {
	case state == stateNone, state == stateDead, now != born:
		return true
	case state == stateZombie:
		threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		return err != nil || len(threads) <= 1
	}
	return false
}
