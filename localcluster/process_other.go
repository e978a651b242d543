//go:build !unix

package localcluster

import (
	"errors"
	"os"
	"syscall"
)

// There are no clusters here; the rest of capstan works with a MongoDB elsewhere.
var errUnsupported = errors.New("local clusters need Linux or another Unix")

const (
	sigFreeze    = syscall.Signal(0x13)
	sigThaw      = syscall.Signal(0x12)
	sigTerminate = syscall.SIGTERM
	stateFrozen  = 'T'
)

func lockDir(string, bool) (*os.File, error)    { return nil, errUnsupported }
func processAttr(bool) *syscall.SysProcAttr     { return nil }
func processServes(int, string) bool            { return false }
func processStat(int) (state byte, born string) { return 0, "" }
func processEnded(int, string) bool             { return true }
