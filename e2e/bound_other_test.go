//go:build !linux

package e2e

import "os/exec"

// bind does nothing where a process cannot be bound to its parent.
func bind(*exec.Cmd) {}
