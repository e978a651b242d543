package main

import (
	"context"
	"maps"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// tailCheckpoint stores how far a durable tail has printed. Not safe for concurrent use.
type tailCheckpoint struct {
	store  *checkpoint.Mongo
	stored record.Checkpoint
	next   record.Checkpoint
	moved  bool
	// idle: only progress of a change stream came since the last save, which was at saved.
	idle  bool
	saved time.Time
	close func()
}

// idleSave is how often progress of a change stream alone is stored: storing it in a database that is
// followed moves the position again.
const idleSave = 30 * time.Second

// openTailCheckpoint takes the name over.
func openTailCheckpoint(ctx context.Context, env *environ, o tailOptions) (*tailCheckpoint, error) {
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return nil, err
	}
	store, err := env.checkpoints(client.Database(o.name.db))
	if err == nil {
		var cp record.Checkpoint
		if cp, err = store.Acquire(ctx, o.durable, o.name.String(), owner()); err == nil {
			return &tailCheckpoint{store: store, stored: cp, next: cp.Clone(), close: closeClient}, nil
		}
	}
	closeClient()
	return nil, err
}

// done says that r is printed, or not wanted.
func (c *tailCheckpoint) done(r record.Record) {
	if r.Kind == record.KindProgress && r.Progress == nil && time.Since(c.saved) < idleSave {
		c.idle = true
	} else {
		c.moved = true
	}
	c.next.Position = r.Position
	if r.Fingerprint != c.next.Fingerprint {
		c.next.Fingerprint, c.next.Marks = r.Fingerprint, nil // another collection: other srcs
	}
	if c.next.Marks == nil {
		c.next.Marks = map[string]int64{}
	}
	switch r.Kind {
	case record.KindMessage:
		if r.Ours() {
			c.mark(r.Src, r.Seq)
		}
	case record.KindProgress:
		for src, seq := range r.Progress {
			c.mark(src, seq)
		}
	case record.KindGap:
		for _, l := range r.Gap.Lost {
			c.mark(l.Src, l.To) // the loss has been said; a restart must not say it again
		}
	}
}

func (c *tailCheckpoint) mark(src string, seq int64) {
	if c.next.Marks[src] < seq {
		c.next.Marks[src] = seq
	}
	if len(c.next.Marks) > tailer.DefaultMaxMarks {
		for other := range c.next.Marks { // any one: at worst some of its messages are printed again
			if other != src {
				delete(c.next.Marks, other)
				break
			}
		}
	}
}

// save stores what done said, if anything moved.
func (c *tailCheckpoint) save(ctx context.Context) error {
	if !c.moved {
		return nil
	}
	cp := c.next.Clone()
	cp.Owner, cp.Revision = c.stored.Owner, c.stored.Revision
	saved, err := c.store.Save(ctx, cp)
	if err != nil {
		return err
	}
	c.stored, c.moved, c.idle, c.saved = saved, false, false, time.Now()
	c.next.Marks = maps.Clone(c.next.Marks)
	return nil
}
