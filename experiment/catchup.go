package experiment

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

// span is how much time the messages of a filled stream are spread over: a stream that filled up in
// an hour, so that a resume's overlap of some seconds is a small part of it.
const span = time.Hour

// overfill is how much more than its size is written into a stream so that it is certainly full.
const overfill = 1.1

// catchUp compares tails that read a full stream from its oldest message, and the time that a resume
// in the middle takes to its first message.
func (c *core) catchUp(ctx context.Context) error {
	db := database("catchup", "all")
	count, middle, err := c.fill(ctx, db, c.cfg.Payload)
	if err != nil {
		return err
	}
	defer func() { _ = c.conn.DropDatabase(db) }()
	c.cfg.Note(fmt.Sprintf("a full stream of %d messages", count))
	job := Job{What: Tail, Database: db, Stream: benchStream}
	all := Comparison{Name: "catch-up from the oldest message", Unit: "msg/s", Target: 0.4}
	err = c.compare(ctx, &all, job.until(count), func(o Outcome) float64 { return float64(o.Messages) / o.Seconds })
	c.report.Comparisons = append(c.report.Comparisons, all)
	if err != nil {
		return err
	}
	c.allocations(all)
	first := Comparison{Name: "first message after a resume in the middle", Unit: "s", Target: 1.5}
	job.From = &middle
	err = c.compare(ctx, &first, job.until(1), func(o Outcome) float64 { return o.First })
	c.report.Comparisons = append(c.report.Comparisons, first)
	return err
}

func (j Job) until(count int64) Job {
	j.Count = count
	return j
}

// compare runs one tail job by all sides in turn.
func (c *core) compare(ctx context.Context, cmp *Comparison, j Job, value func(Outcome) float64) error {
	for i := range c.cfg.Rounds {
		var round Round
		for _, who := range turns(i, Capstan, Raw, Driver) {
			j.Who = who
			cpu := processCPU(c.cfg.ServerPID)
			o, err := c.one(ctx, j)
			if err != nil {
				return err
			}
			if o.Gaps > 0 {
				return fmt.Errorf("the tail of %s reports %d gaps where nothing was lost", who, o.Gaps)
			}
			round = append(round, Side{Who: who, Value: value(o), ServerCPU: processCPU(c.cfg.ServerPID) - cpu, Workers: []Outcome{o}})
			c.cfg.Note(fmt.Sprintf("round %d: %s %.4g %s", i+1, who, value(o), cmp.Unit))
		}
		cmp.Rounds = append(cmp.Rounds, round)
	}
	return nil
}

// allocations reports what a caught-up message cost the heap, connecting included.
func (c *core) allocations(all Comparison) {
	var n, bytes []float64
	var from []Outcome
	for _, r := range all.Rounds {
		for _, s := range r {
			if s.Who != Capstan {
				continue
			}
			o := s.Workers[0]
			n = append(n, float64(o.Mallocs)/float64(o.Messages))
			bytes = append(bytes, float64(o.MallocBytes)/float64(o.Bytes))
			from = append(from, o)
		}
	}
	// One is the document's copy. The rest is per batch: the driver's reply buffer, timers, contexts.
	c.report.Limits = append(c.report.Limits,
		Limit{Name: "allocations per message in the tail", Unit: "allocations", Value: median(n), Limit: 1.1, Workers: from},
		Limit{Name: "heap bytes per message byte in the tail", Unit: "bytes", Value: median(bytes)})
}

// fill writes a stream full and returns how many messages it holds and the one in the middle.
func (c *core) fill(ctx context.Context, db string, payload int) (int64, Place, error) {
	info, err := c.fresh(ctx, db, benchStream)
	if err != nil {
		return 0, Place{}, err
	}
	b := newBlock("fill/"+bson.NewObjectID().Hex()[16:], payloads(c.cfg.Batch, payload, c.cfg.Seed))
	blocks := int(overfill*float64(c.cfg.StreamBytes))/len(b.docs) + 1
	begin := time.Now().Add(-span)
	for i := range blocks {
		if ctx.Err() != nil {
			return 0, Place{}, context.Cause(ctx)
		}
		b.stamp(time.Now())
		b.backdate(func(int) time.Time { return begin.Add(span * time.Duration(i) / time.Duration(blocks)) })
		if _, err := c.conn.Insert(db, benchStream, b.docs); err != nil {
			return 0, Place{}, err
		}
	}
	count, err := c.conn.Count(db, benchStream)
	if err != nil {
		return 0, Place{}, err
	}
	place, err := c.place(db, count/2, info)
	return count, place, err
}

// place returns message number n (from 0) of a stream, as a checkpoint would hold it.
func (c *core) place(db string, n int64, info stream.Info) (Place, error) {
	cur, err := c.conn.Find(db, benchStream, raw.Query{})
	if err != nil {
		return Place{}, err
	}
	defer func() { _ = cur.Close() }()
	for i := int64(0); ; {
		for doc, ok := cur.Next(); ok; doc, ok = cur.Next() {
			if i == n {
				return placeOf(doc, info)
			}
			i++
		}
		if cur.ID() == 0 {
			return Place{}, fmt.Errorf("stream %s has no message %d", info.Namespace, n)
		}
		if err := cur.GetMore(0); err != nil {
			return Place{}, err
		}
	}
}

func placeOf(doc bson.Raw, info stream.Info) (Place, error) {
	r, err := record.Decode(append(bson.Raw(nil), doc...), record.Interner{})
	if err != nil {
		return Place{}, err
	}
	return Place{Position: r.Position.String(), Marks: map[string]int64{r.Src: r.Seq}, Fingerprint: info.Fingerprint(),
		Seconds: r.Position.TS.T, Increment: r.Position.TS.I}, nil
}
