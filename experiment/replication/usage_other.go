//go:build !linux

package replication

import (
	"syscall"
	"time"
)

// usage is what a process has used.
type usage struct {
	cpu time.Duration // user and system
	rss int64         // the most resident memory, in bytes; not known here
}

// use knows of running processes on Linux only.
func use(int) usage { return usage{} }

func dieWithParent() *syscall.SysProcAttr { return nil }
