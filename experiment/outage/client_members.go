package outage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/internal/pace"
)

const (
	// probeEvery is the time between two probes of one member; probeSlots of them take turns, so that one
	// that waits for the majority does not keep the next from being sent.
	probeEvery = 50 * time.Millisecond
	probeSlots = 4
	// probeDeadline bounds a probe. One that waits for a majority returns at the commit, so the moment at
	// which writes are acknowledged again is seen to the millisecond.
	probeDeadline = time.Second
	// probeDial bounds connecting; a member that answers does so within a millisecond here, or within two round
	// trips of a delayed link.
	probeDial = probeDeadline
)

// Dialer connects to a member.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// ProbeMembers writes to each member directly, with the majority's write concern, over connections that
// are made anew after each failure, until ctx ends. Nothing of a driver is in the way: no monitoring, no
// selection, no pool. emit is called for each probe, one at a time.
func ProbeMembers(ctx context.Context, addrs []string, d Dialer, emit func(Event)) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, addr := range addrs {
		for slot := range probeSlots {
			wg.Go(func() {
				p := &probe{addr: addr, dialer: d, emit: func(e Event) {
					mu.Lock()
					defer mu.Unlock()
					emit(e)
				}}
				p.run(ctx, time.Duration(slot)*probeEvery, probeSlots*probeEvery)
			})
		}
	}
	wg.Wait()
}

// probe is one connection to one member.
type probe struct {
	addr   string
	dialer Dialer
	emit   func(Event)
	conn   *raw.Conn
}

func (p *probe) run(ctx context.Context, first, every time.Duration) {
	defer p.drop()
	due := time.Now().Add(first)
	for {
		if pace.Sleep(ctx, time.Until(due)) != nil {
			return
		}
		start := Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if _, answered := errors.AsType[*raw.CommandError](err); !answered { // no primary, and says so: not worth a line
			p.tell(start, err)
		}
		if due = due.Add(every); due.Before(time.Now()) {
			due = time.Now()
		}
	}
}

func (p *probe) tell(start Moment, err error) {
	e := Event{Kind: KindProbe, Start: start, Took: Now().Sub(start).Microseconds(), Member: p.addr, OK: err == nil}
	if err != nil {
		e.Err = err.Error()
		p.drop()
	}
	p.emit(e)
}

func (p *probe) drop() {
	if p.conn != nil {
		_ = p.conn.Close() // it has failed, or nothing is asked any more
		p.conn = nil
	}
}

func (p *probe) once(ctx context.Context) error {
	if p.conn == nil {
		dial, cancel := context.WithTimeout(ctx, probeDial)
		defer cancel()
		c, err := raw.Dial(dial, p.addr, raw.Config{Timeout: probeDeadline, Dialer: p.dialer})
		if err != nil {
			return err
		}
		p.conn = c
	}
	conn := p.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends a call that waits
	defer stop()
	reply, err := conn.Run("insert", Database, majorityInsert(), nil)
	if err != nil {
		if _, ok := errors.AsType[*raw.CommandError](err); ok {
			return err // the member answers, and is no primary
		}
		return fmt.Errorf("no answer: %w", err)
	}
	if reply.Lookup("writeConcernError").Type != 0 {
		return errors.New("no majority")
	}
	return nil
}

// majorityInsert is the command's elements without its frame. The wait for the majority ends at the
// server before it ends here.
func majorityInsert() []byte {
	doc := bsoncore.NewDocumentBuilder().AppendObjectID("_id", bson.NewObjectID()).Build()
	concern := bsoncore.NewDocumentBuilder().AppendString("w", "majority").
		AppendInt64("wtimeout", (probeDeadline - probeDeadline/10).Milliseconds()).Build()
	b := bsoncore.AppendStringElement(nil, "insert", probes)
	b = bsoncore.AppendDocumentElement(b, "writeConcern", concern)
	return bsoncore.AppendArrayElement(b, "documents", bsoncore.BuildArray(nil, bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc}))
}

// members is the client of that role.
func (c *client) members(ctx context.Context) error {
	o := c.options()
	if len(o.Hosts) == 0 {
		return errors.New("the connection string names no member")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := int64(0)
	ProbeMembers(ctx, o.Hosts, new(net.Dialer), func(e Event) {
		if c.cfg.Count > 0 && n >= c.cfg.Count {
			return
		}
		c.emit(e)
		if e.OK {
			c.emitReady()
		}
		if n++; n == c.cfg.Count {
			cancel()
		}
	})
	return nil
}
