package experiment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// Times of a worker process.
const (
	// workerGrace is how long a worker may take to end by itself once its work is over.
	workerGrace = 10 * time.Second
)

// worker is the parent's hold on one worker process.
type worker struct {
	job    Job
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// startWorker starts cmd, which must run RunWorker on its standard input and output, hands it the
// job, and returns when it is ready to go. When ctx ends, the process is killed. The caller calls
// wait (or the ctx ends).
func startWorker(ctx context.Context, command func(context.Context) *exec.Cmd, j Job) (*worker, error) {
	w := &worker{job: j, cmd: command(ctx)}
	w.cmd.Stderr = &w.stderr
	w.cmd.WaitDelay = workerGrace
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("open worker's input: %w", err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open worker's output: %w", err)
	}
	w.stdout = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	spec, err := json.Marshal(map[string]any{"job": j, "uri": j.URI})
	if err == nil {
		_, err = w.stdin.Write(append(spec, '\n'))
	}
	if err == nil {
		err = w.expect("ready")
	}
	if err != nil {
		return nil, w.abandon(err)
	}
	return w, nil
}

func (w *worker) expect(want string) error {
	line, err := w.stdout.ReadString('\n')
	if err != nil {
		return err
	}
	if line != want+"\n" {
		return fmt.Errorf("worker said %q instead of %q", line, want)
	}
	return nil
}

// begin tells a ready worker to go.
func (w *worker) begin() error {
	if _, err := io.WriteString(w.stdin, "go\n"); err != nil {
		return w.abandon(err)
	}
	return nil
}

// wait returns the worker's outcome and ends its process.
func (w *worker) wait() (Outcome, error) {
	var o Outcome
	line, err := w.stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return o, w.abandon(err)
	}
	return o, w.end()
}

// abandon ends a worker that did not do what it should, and says what it said.
func (w *worker) abandon(cause error) error {
	_ = w.stdin.Close()
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	return fmt.Errorf("run worker %s %s: %w: %s", w.job.Who, w.job.What, cause, w.said())
}

func (w *worker) said() string {
	s := bytes.TrimSpace(w.stderr.Bytes())
	if len(s) > 500 {
		s = s[len(s)-500:]
	}
	return string(s)
}
