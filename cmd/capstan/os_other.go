//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// terminateSignal asks a child to end.
var terminateSignal = os.Kill

// ownGroup does nothing: there are no process groups here.
func ownGroup(*exec.Cmd) {}

// signalGroup signals the child only.
func signalGroup(p *os.Process, s os.Signal) { _ = p.Signal(s) }

// readerGone reports nothing: a closed pipe is noticed at the next message.
func readerGone(any) bool { return false }
