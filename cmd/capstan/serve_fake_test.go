package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// fakeLinks, in the environment of a capstan made of the test binary, makes serve run links that need no server: what the daemon
// does is tested with them, and with real ones in serve_test.go. What a route's name begins with says what its link does. Its
// value is a folder: a file of a route's name says that its link runs.
const fakeLinks = "CAPSTAN_TEST_FAKE_LINKS"

// fakeLink is such a link.
type fakeLink struct {
	name, mark string
	begin      daemon.Begin

	mu     sync.Mutex
	status replicator.Status
}

func newFakeLink(_ *environ, r config.Route, t config.Target, b daemon.Begin) (daemon.Link, func(context.Context), error) {
	name := r.Link(t)
	l := &fakeLink{name: name, begin: b, mark: filepath.Join(os.Getenv(fakeLinks), strings.ReplaceAll(name, "/", "_"))}
	now, lag, ops, left := time.Now(), 0.4, int64(12), 7200.0
	l.status = replicator.Status{
		Route: name, Phase: replicator.PhaseLive, Since: now, Updated: now, LagSeconds: &lag, LagOperations: &ops, OplogLeftSeconds: &left,
		Source: replicator.Identity{SetName: "rs0", Version: "6.0.5"}, Target: replicator.Identity{SetName: "rs1", Version: "6.0.5"},
		Read:    replicator.Point{Time: "1700000002.1", Unix: 1700000002},
		Applied: replicator.Point{Time: "1700000001.1", Unix: 1700000001}, Checkpoint: replicator.Point{Time: "1700000000.1", Unix: 1700000000},
		Head: replicator.Point{Time: "1700000002.7", Unix: 1700000002},
		Copy: replicator.CopyStatus{Collections: 2, Copied: 1, Documents: 1000, Scanned: 340, Matched: 12},
	}
	if b.Paused {
		l.status.Phase, l.status.Paused = replicator.PhasePaused, replicator.PhaseLive
	}
	return l, nil, nil
}

func (l *fakeLink) Run(ctx context.Context) error {
	if err := os.WriteFile(l.mark, []byte(time.Now().String()), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(l.mark) }()
	l.begin.Hooks.OnSaved(record.Position{})
	switch {
	case strings.HasPrefix(l.name, "failing"):
		return errors.New("cannot reach mongodb://u:hunter2@db1")
	case strings.HasPrefix(l.name, "lost") && !l.begin.Resync:
		return &replicator.LostError{Route: l.name, Err: errors.New("too old")}
	}
	<-ctx.Done()
	if strings.HasPrefix(l.name, "slow") {
		time.Sleep(10 * time.Minute)
	}
	return nil
}

func (l *fakeLink) Status() replicator.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Updated = time.Now()
	return l.status
}

func (l *fakeLink) phase(p, paused replicator.Phase) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Phase, l.status.Paused = p, paused
	return nil
}

func (l *fakeLink) Pause(context.Context) error {
	return l.phase(replicator.PhasePaused, replicator.PhaseLive)
}
func (l *fakeLink) Resume(context.Context) error { return l.phase(replicator.PhaseLive, "") }
func (l *fakeLink) Resync(context.Context) error { return l.phase(replicator.PhaseCopying, "") }
func (l *fakeLink) Finalize(context.Context) error {
	return replicator.ErrNotLive
}
func (l *fakeLink) Retry(context.Context) (int64, int64, error) { return 3, 1, nil }
