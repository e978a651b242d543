package e2e

import (
	"os/exec"
	"syscall"
)

// bind ends cmd with this process, also where a timeout of the tests takes the clean-ups away.
func bind(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
