//go:build !linux

package replication

import (
	"os"
	"syscall"
	"time"
)

// usage is what a process has used.
type usage struct {
	cpu time.Duration // user and system
	rss int64         // the most resident memory, in bytes; not known here
}

func usageOf(s *os.ProcessState) usage { return usage{cpu: s.UserTime() + s.SystemTime()} }

// use knows of running processes on Linux only.
func use(int) usage { return usage{} }

func dieWithParent() *syscall.SysProcAttr { return nil }
