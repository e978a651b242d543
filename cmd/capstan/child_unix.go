//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// terminateSignal asks a child to end.
const terminateSignal = syscall.SIGTERM

// ownGroup makes cmd the leader of a process group.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// signalGroup signals a leader and everything that it started.
func signalGroup(p *os.Process, s os.Signal) {
	if sig, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-p.Pid, sig) // gone already is fine
	}
}
