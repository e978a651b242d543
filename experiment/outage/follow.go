package outage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/history"
)

// Names of the readers of the stream, as the oracle knows them.
const (
	tailReader    = "tail"
	consumeReader = "consume"
)

// follower is `capstan tail` or `capstan consume` in a process of its own, following the prober's stream.
type follower struct {
	*process
	name string

	mu   sync.Mutex
	seen []history.Event
	last map[string]int64 // highest seq per src
	gaps int
}

// message is the part of a line of `tail --output json` that matters here.
type message struct {
	Src string          `json:"src"`
	Seq json.RawMessage `json:"seq"`
	Gap json.RawMessage `json:"gap"`
}

// number reads a seq in relaxed or canonical Extended JSON.
func number(raw json.RawMessage) int64 {
	var n int64
	if json.Unmarshal(raw, &n) == nil {
		return n
	}
	var long struct {
		N string `json:"$numberLong"`
	}
	if json.Unmarshal(raw, &long) == nil {
		_, _ = fmt.Sscan(long.N, &n) // 0 if it is no number
	}
	return n
}

// take notes a line that is a message; whatever else a program says is left alone.
func (f *follower) take(b []byte) {
	if bytes.HasPrefix(b, []byte("gap:")) { // as both programs report one, on standard error
		f.mu.Lock()
		f.gaps++
		f.mu.Unlock()
	}
	var m message
	if json.Unmarshal(b, &m) != nil || m.Src == "" {
		return
	}
	seq := number(m.Seq)
	if seq == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, history.Event{Kind: history.KindDelivered, Key: history.Key{Src: m.Src, Seq: seq}, Reader: f.name, At: time.Now().UnixMicro()})
	f.last[m.Src] = max(f.last[m.Src], seq)
}

// reached reports whether everything of src up to seq has come by.
func (f *follower) reached(src string, seq int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last[src] >= seq
}

// events returns what was delivered of src, and how many reports of losses there were.
func (f *follower) events(src string) (events []history.Event, gaps int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.seen {
		if e.Key.Src == src {
			events = append(events, e)
		}
	}
	return events, f.gaps
}

// startTail follows the stream from some seconds ago on.
func startTail(ctx context.Context, command commander) (*follower, error) {
	from := time.Now().Add(-2 * time.Second).UTC().Format(time.RFC3339)
	return startFollower(ctx, tailReader, func(ctx context.Context) *exec.Cmd {
		return command(ctx, "tail", Database+"."+Messages, "--output", "json", "--from", from)
	})
}

// startConsume follows the stream under a durable name, which outlives the trial.
func startConsume(ctx context.Context, command commander) (*follower, error) {
	return startFollower(ctx, consumeReader, func(ctx context.Context) *exec.Cmd {
		return command(ctx, "consume", Database+"."+Messages, "--durable", "experiment",
			"--exec", `while read -r line; do echo "$line" >&2; echo ok; done`)
	})
}

func startFollower(ctx context.Context, name string, command func(context.Context) *exec.Cmd) (*follower, error) {
	f := &follower{name: name, last: make(map[string]int64)}
	var err error
	f.process, err = startProcess(ctx, name, command, f.take, f.take)
	return f, err
}
