package consumer_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log is a stream in memory: the records of several srcs, in one order.
type log struct {
	mu      sync.Mutex
	records []record.Record
	changed chan struct{}
	ended   bool
	failure error // what Next returns at the end, instead of io.EOF
}

func newLog() *log { return &log{changed: make(chan struct{})} }

// message returns the n-th message (from 1) of a log, with the src's own number.
func message(n int, src string, seq int64) record.Record {
	return record.Record{
		Kind: record.KindMessage, Position: positionOf(n), Fingerprint: "f00d",
		Src: src, Seq: seq, Time: int64(n), Raw: bson.Raw{5, 0, 0, 0, 0},
	}
}

func positionOf(n int) record.Position {
	return record.Position{
		TS: record.Timestamp{T: 1_700_000_000, I: uint32(n)},
		ID: record.ObjectID(bson.ObjectID{11: byte(n), 10: byte(n >> 8), 9: byte(n >> 16)}),
	}
}

// fill returns a log with count messages of srcs producers, one after the other, that ends.
func fill(count, srcs int) *log {
	l := newLog()
	seqs := make([]int64, srcs)
	for n := 1; n <= count; n++ {
		s := n % srcs
		seqs[s]++
		l.records = append(l.records, message(n, fmt.Sprintf("p%d/run", s), seqs[s]))
	}
	l.ended = true
	return l
}

func (l *log) append(recs ...record.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, recs...)
	close(l.changed)
	l.changed = make(chan struct{})
}

// open is a consumer.Open: it begins behind the position, and leaves out what is below the marks.
func (l *log) open(_ context.Context, start record.Start) (consumer.Source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &logSource{log: l, marks: start.Marks}
	switch start.Where {
	case record.Latest:
		s.at = len(l.records)
	case record.After:
		for s.at < len(l.records) && l.records[s.at].Position.TS.Compare(start.Position.TS) <= 0 {
			s.at++
		}
	}
	return s, nil
}

type logSource struct {
	log    *log
	at     int
	marks  map[string]int64
	closed bool
}

func (s *logSource) Next(ctx context.Context) (record.Record, error) {
	for {
		if err := ctx.Err(); err != nil {
			return record.Record{}, err
		}
		s.log.mu.Lock()
		changed, ended, failure := s.log.changed, s.log.ended, s.log.failure
		for s.at < len(s.log.records) {
			r := s.log.records[s.at]
			s.at++
			if r.Kind == record.KindMessage && r.Src != "" && r.Seq <= s.marks[r.Src] {
				continue
			}
			s.log.mu.Unlock()
			return r, nil
		}
		s.log.mu.Unlock()
		switch {
		case failure != nil:
			return record.Record{}, failure
		case ended:
			return record.Record{}, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return record.Record{}, ctx.Err()
		}
	}
}

func (s *logSource) Close() error {
	if s.closed {
		panic("closed twice")
	}
	s.closed = true
	return nil
}
