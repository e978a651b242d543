package experiment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Who does a job.
const (
	// Capstan is this project's producer or tailer as its users get it.
	Capstan = "capstan"
	// Raw is the ideal client of package raw: the floor.
	Raw = "raw"
	// Driver is MongoDB's own driver used plainly: what a user would write without capstan.
	Driver = "driver"
)

// What a worker does.
const (
	// Produce sends Job.Count messages flat out and waits until all are acknowledged.
	Produce = "produce"
	// Tail reads a stream from Job.From until it has seen Job.Count messages.
	Tail = "tail"
	// Idle tails a stream on which nothing happens for Job.For.
	Idle = "idle"
)

// Job is what one worker process does. It travels as JSON.
type Job struct {
	Who  string `json:"who"`
	What string `json:"what"`
	// URI is the server, one standalone member without authentication (the raw client speaks no more).
	URI      string `json:"-"`
	Database string `json:"database"`
	Stream   string `json:"stream"`
	// Count is the number of messages to send or to see.
	Count int64 `json:"count,omitempty"`
	// Payload is the number of bytes in each message's data, made from Seed.
	Payload int    `json:"payload,omitempty"`
	Seed    uint64 `json:"seed,omitempty"`
	// Batch is how many messages the raw producer puts into one insert.
	Batch int `json:"batch,omitempty"`
	// From is where a tail starts; nil means the oldest message.
	From *Place `json:"from,omitempty"`
	// For is how long Idle tails.
	For time.Duration `json:"for,omitempty"`
	// Latency makes it one end of a latency variant: What is Send or Read.
	Latency *LatencyJob `json:"latency,omitempty"`
}

// Place is a message in a stream, as a reader's checkpoint would hold it.
type Place struct {
	Position    string           `json:"position"`
	Marks       map[string]int64 `json:"marks"`
	Fingerprint string           `json:"fingerprint"`
	// Seconds and Increment are the message's server timestamp, for the raw filter.
	Seconds   uint32 `json:"seconds"`
	Increment uint32 `json:"increment"`
}

// Outcome is what a worker measured, from the moment it was told to go. Seconds are seconds of wall
// clock; CPU is user and system time of the worker's process.
type Outcome struct {
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	// First is the time until the first message arrived; tails only.
	First float64 `json:"first_seconds,omitempty"`
	CPU   float64 `json:"cpu_seconds"`
	// Mallocs and MallocBytes count what the Go heap handed out.
	Mallocs     uint64 `json:"mallocs"`
	MallocBytes uint64 `json:"malloc_bytes"`
	// PeakRSS is the process's high-water mark of resident memory in bytes (VmHWM), from its start.
	PeakRSS int64 `json:"peak_rss_bytes"`
	// Commands counts the commands that the tail sent, by name; Idle only.
	Commands map[string]int64 `json:"commands,omitempty"`
	// Gaps is the number of gap records that the tail got; it must be 0 here.
	Gaps int64 `json:"gaps,omitempty"`
	// At is when the job was done, in seconds since the Unix epoch.
	At float64 `json:"at"`
}

// task is a job made ready: connected and with its data at hand, so that only the work itself is
// measured. It fills in what only it knows of the outcome.
type task func(ctx context.Context, out *Outcome) error

// RunWorker does one job in this process: it reads the job from in, gets ready, writes one line to
// out, waits for one line, works, and writes the Outcome as one line of JSON. The parent is
// startWorker. A process of its own for each side keeps garbage, caches and memory of the sides
// apart.
func RunWorker(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var env struct {
		Job Job    `json:"job"`
		URI string `json:"uri"`
	}
	if err := json.Unmarshal(line, &env); err != nil {
		return fmt.Errorf("decode job: %w", err)
	}
	env.Job.URI = env.URI
	if env.Job.Latency != nil {
		return runSide(ctx, env.Job, lines, out)
	}
	t, done, err := prepare(ctx, env.Job)
	if err != nil {
		return fmt.Errorf("prepare %s %s: %w", env.Job.Who, env.Job.What, err)
	}
	defer done()
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return fmt.Errorf("report ready: %w", err)
	}
	if _, err := lines.ReadBytes('\n'); err != nil {
		return fmt.Errorf("wait for go: %w", err)
	}
	o, err := measure(ctx, t)
	if err != nil {
		return fmt.Errorf("%s %s: %w", env.Job.Who, env.Job.What, err)
	}
	if err := json.NewEncoder(out).Encode(o); err != nil {
		return fmt.Errorf("report outcome: %w", err)
	}
	return nil
}

func measure(ctx context.Context, t task) (Outcome, error) {
	var o Outcome
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(), time.Now()
	if err := t(ctx, &o); err != nil {
		return o, err
	}
	o.Seconds = time.Since(start).Seconds()
	o.CPU = (cpuTime() - cpu).Seconds()
	o.At = float64(time.Now().UnixMicro()) / 1e6
	runtime.ReadMemStats(&after)
	o.Mallocs = after.Mallocs - before.Mallocs
	o.MallocBytes = after.TotalAlloc - before.TotalAlloc
	var err error
	o.PeakRSS, err = peakRSS()
	return o, err
}

// prepare returns the task of a job and what to call when it is over.
func prepare(ctx context.Context, j Job) (task, func(), error) {
	switch j.Who + " " + j.What {
	case Raw + " " + Produce:
		return rawProduce(ctx, j)
	case Raw + " " + Tail:
		return rawTail(ctx, j)
	case Driver + " " + Tail:
		return driverFind(ctx, j)
	case Capstan + " " + Produce:
		return capstanProduce(ctx, j)
	case Capstan + " " + Tail:
		return capstanTail(ctx, j)
	case Capstan + " " + Idle:
		return capstanIdle(ctx, j)
	}
	return nil, nil, fmt.Errorf("nobody named %q does %q", j.Who, j.What)
}

// cpuTime is the CPU time that this process has used, user and system.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakRSS reads VmHWM of this process in bytes.
func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read resident memory: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("read resident memory: no VmHWM in /proc/self/status")
}
