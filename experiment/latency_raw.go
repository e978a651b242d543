package experiment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/record"
)

// Where the values stand in a message that starts with _id (an ObjectId), time and src.
const (
	idAt   = 4 + 1 + len(record.FieldID) + 1
	timeAt = idAt + 12 + 1 + len(record.FieldTime) + 1
	srcAt  = timeAt + 8 + 1 + len(record.FieldSrc) + 1
)

// seqAt returns where the value of seq stands, behind src, whose length differs.
func seqAt(doc []byte) int {
	return srcAt + 4 + int(binary.LittleEndian.Uint32(doc[srcAt:])) + 1 + len(record.FieldSeq) + 1
}

// rawSender does group commit without a hop: whoever finds no insert in flight sends the next one, the
// sender or the goroutine that receives the replies.
type rawSender struct {
	conn     *raw.Conn
	job      Job
	counts   *counts
	maxBatch int
	messages []bson.Raw // encoded; identity, time and seq are written into a copy
	block    *block

	mu       sync.Mutex
	changed  sync.Cond
	pending  []byte // documents back to back
	ends     []int  // where each of them ends
	spare    []byte // the buffer that was sent last
	n        int64  // sent
	acked    int64
	inFlight bool
	err      error
	ended    chan struct{}
}

func newRawSender(ctx context.Context, j Job, c *counts) (*rawSender, error) {
	conn, err := dialRaw(ctx, j.URI)
	if err != nil {
		return nil, err
	}
	b := newBlock("raw/"+bson.NewObjectID().Hex()[:13], payloads(differentPayloads, j.Payload, j.Seed))
	s := &rawSender{conn: conn, job: j, counts: c, maxBatch: j.Batch, block: b, messages: b.documents(), ended: make(chan struct{})}
	s.changed.L = &s.mu
	go s.receive()
	return s, nil
}

func (s *rawSender) send(context.Context) error {
	s.mu.Lock()
	for len(s.ends) >= 2*s.maxBatch && s.err == nil {
		s.changed.Wait()
	}
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	doc := s.messages[s.n%int64(len(s.messages))]
	s.n++
	at := len(s.pending)
	s.pending = append(s.pending, doc...)
	m := s.pending[at:]
	s.block.next++
	binary.BigEndian.PutUint64(s.block.oid[4:], uint64(s.block.next))
	copy(m[idAt:], s.block.oid[:])
	binary.LittleEndian.PutUint64(m[timeAt:], uint64(time.Now().UnixMicro()))
	binary.LittleEndian.PutUint64(m[seqAt(m):], uint64(s.n))
	s.ends = append(s.ends, len(s.pending))
	if s.inFlight {
		s.mu.Unlock()
		return nil
	}
	return s.start()
}

// start sends what is pending. It is called with the lock and gives it up.
func (s *rawSender) start() error {
	n := min(len(s.ends), s.maxBatch)
	size := s.ends[n-1]
	out := s.pending[:size]
	rest := append(s.spare[:0], s.pending[size:]...)
	s.spare, s.pending = s.pending, rest
	s.ends = append(s.ends[:0], s.ends[n:]...)
	for i := range s.ends {
		s.ends[i] -= size
	}
	s.inFlight = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.counts.inserts.Add(1)
	return s.conn.StartInsert(s.job.Database, s.job.Stream, out)
}

// receive takes the replies.
func (s *rawSender) receive() {
	defer close(s.ended)
	for {
		n, err := s.conn.FinishInsert()
		s.mu.Lock()
		s.acked += int64(n)
		s.inFlight = false
		s.changed.Broadcast()
		if err == nil && len(s.ends) > 0 {
			err = s.start()
			s.mu.Lock()
		}
		if err != nil {
			s.err = err
			s.changed.Broadcast()
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func (s *rawSender) flush(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.acked < s.n && s.err == nil {
		s.changed.Wait() // bounded: every reply has a deadline
	}
	return s.err
}

func (s *rawSender) close(context.Context) {
	_ = s.conn.Close()
	<-s.ended
}

// rawReader is a raw tail, or a raw find.
type rawReader struct {
	job    Job
	counts *counts
	conn   *raw.Conn
	cursor *raw.Cursor
}

func newRawReader(ctx context.Context, j Job, c *counts) (*rawReader, error) {
	r := &rawReader{job: j, counts: c}
	if j.Latency.Style != styleFind { // a replay pays for connecting and opening
		if err := r.open(ctx); err != nil {
			r.close(ctx)
			return nil, err
		}
	}
	return r, nil
}

func (r *rawReader) open(ctx context.Context) (err error) {
	if r.conn, err = dialRaw(ctx, r.job.URI); err != nil {
		return err
	}
	r.counts.queries.Add(1)
	r.cursor, err = r.conn.Find(r.job.Database, r.job.Stream, raw.Query{Tailable: r.job.Latency.Style != styleFind})
	return err
}

func (r *rawReader) read(ctx context.Context, n int64, got func(arrival)) error {
	if r.cursor == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	for seen := int64(0); seen < n; {
		doc, ok := r.cursor.Next()
		if !ok {
			if err := r.more(ctx); err != nil {
				return err
			}
			continue
		}
		if record.IsPrimer(doc) {
			continue
		}
		got(arrival{time: int64(binary.LittleEndian.Uint64(doc[timeAt:])), seq: int64(binary.LittleEndian.Uint64(doc[seqAt(doc):]))})
		seen++
	}
	return nil
}

func (r *rawReader) more(ctx context.Context) error {
	if r.cursor.ID() == 0 {
		return fmt.Errorf("the cursor on %s.%s has ended", r.job.Database, r.job.Stream)
	}
	var await time.Duration
	if r.job.Latency.Style != styleFind {
		await = tailAwait
	}
	r.counts.getMores.Add(1)
	if err := r.cursor.GetMore(await); err != nil {
		return err
	}
	if r.cursor.Buffered() {
		r.counts.batches.Add(1)
	}
	return ctx.Err()
}

func (r *rawReader) idle(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.more(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if r.cursor.Buffered() {
			return errors.New("a message came where nothing was sent")
		}
	}
	return nil
}

func (r *rawReader) close(context.Context) {
	if r.conn != nil {
		_ = r.conn.Close()
	}
}
