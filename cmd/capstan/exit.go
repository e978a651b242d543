package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/seed-12ef14e5/capstan/internal/config"
)

// The exit codes, as documented in the root command's help.
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitConfig     = 3
	exitConnect    = 4
	exitLost       = 5
	exitDifference = 6
	exitTimeout    = 124
	exitInterrupt  = 130
	exitTerminated = 143
)

// codeError is an error with an exit code of its own. A nil Err prints nothing: all has been said.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// usageError marks a wrong use of the command line: exit code 2.
func usageError(format string, args ...any) error {
	return &codeError{exitUsage, fmt.Errorf(format, args...)}
}

// errTimeout says that --timeout was reached.
var errTimeout = &codeError{exitTimeout, errors.New("--timeout reached")}

// stopError says that a signal asked to stop. It is the cause of the contexts that the stopper ends.
type stopError struct{ signal os.Signal }

func (e *stopError) Error() string { return "stopped by " + e.signal.String() }

// Is makes a stopError count as context.Canceled, which the libraries take for a request to stop.
func (e *stopError) Is(target error) bool { return target == context.Canceled }

// exitCode is the one place that turns an error into an exit code.
func exitCode(err error) int {
	var (
		coded *codeError
		stop  *stopError
		conf  *config.Error
	)
	switch {
	case err == nil, brokenPipe(err):
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &stop):
		if stop.signal == syscall.SIGTERM {
			return exitTerminated
		}
		return exitInterrupt
	case errors.As(err, &conf):
		return exitConfig
	}
	return exitCodeOfLibraries(err)
}

// lastErrors finds the servers in the driver's dump of what it knows, and why each did not answer.
var lastErrors = regexp.MustCompile(`Addr: ([^,]+), Type: [^}]*?Last error: (.*?) \}`)

// errorText is what is said of an error: of the driver's dump of all servers only why each did not answer.
func errorText(err error) string {
	text := err.Error()
	if !cannotConnect(err) {
		return text
	}
	return withoutDump(text)
}

// withoutDump is errorText for what is only a text any more.
func withoutDump(text string) string {
	before, dump, ok := strings.Cut(text, "server selection error")
	found := lastErrors.FindAllStringSubmatch(dump, -1)
	if strings.Contains(dump, "ReplicaSetNoPrimary, Servers: []") {
		return before + "no server that answered belongs to the set"
	}
	if !ok || len(found) == 0 {
		return text
	}
	why := make([]string, len(found))
	for i, f := range found {
		why[i] = f[2]
		if !strings.Contains(f[2], f[1]) {
			why[i] = f[1] + ": " + f[2]
		}
	}
	return before + strings.Join(why, "; ")
}

// stdoutError marks an error of writing to standard output.
type stdoutError struct{ err error }

func (e *stdoutError) Error() string { return "write standard output: " + e.err.Error() }
func (e *stdoutError) Unwrap() error { return e.err }

// brokenPipe reports whether the reader of standard output went away (| head), which is no failure.
func brokenPipe(err error) bool {
	var out *stdoutError
	return errors.As(err, &out) && errors.Is(out.err, syscall.EPIPE)
}

func stdoutErr(err error) error {
	if err == nil {
		return nil
	}
	return &stdoutError{err}
}
