package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/pace"
)

const benchStream = "stream"

// database names the database of one side of one part.
func database(part, who string) string { return "capstan_bench_" + part + "_" + who }

// produce compares producers that send flat out with a tail of their kind attached.
func (c *core) produce(ctx context.Context) error {
	cmp := Comparison{Name: "producer flat out, a tail attached", Unit: "msg/s", Target: 0.8}
	defer func() { c.report.Comparisons = append(c.report.Comparisons, cmp) }()
	for i := range c.cfg.Rounds {
		var round Round
		for _, who := range turns(i, Capstan, Raw) {
			s, err := c.produceOnce(ctx, who, c.cfg.Messages, c.cfg.Payload)
			if err != nil {
				return err
			}
			round = append(round, s)
			c.cfg.Note(fmt.Sprintf("round %d: %s %.0f msg/s, all delivered after %.2f s", i+1, who, s.Value, s.Delivered))
		}
		cmp.Rounds = append(cmp.Rounds, round)
	}
	return nil
}

// turns returns the sides in the order of round i: A B, B A, A B … so that a machine that gets
// slower or faster favours nobody.
func turns(i int, who ...string) []string {
	n := len(who)
	out := make([]string, n)
	for k := range who {
		out[k] = who[(k+i)%n]
	}
	return out
}

// produceOnce sends messages into a fresh stream that a tail reads from its first message on.
func (c *core) produceOnce(ctx context.Context, who string, messages int64, payload int) (Side, error) {
	db := database("produce", who)
	if _, err := c.fresh(ctx, db, benchStream); err != nil {
		return Side{}, err
	}
	defer func() { _ = c.conn.DropDatabase(db) }()
	job := Job{Who: who, URI: c.cfg.URI, Database: db, Stream: benchStream, Count: messages,
		Payload: payload, Seed: c.cfg.Seed, Batch: c.cfg.Batch}
	tail, err := startWorker(ctx, c.cfg.Worker, job.as(Tail))
	if err != nil {
		return Side{}, err
	}
	producer, err := startWorker(ctx, c.cfg.Worker, job.as(Produce))
	if err != nil {
		return Side{}, tail.abandon(err)
	}
	cpu := processCPU(c.cfg.ServerPID)
	if err := tail.begin(); err != nil {
		return Side{}, producer.abandon(err)
	}
	if err := pace.Sleep(ctx, settleTime); err != nil {
		return Side{}, producer.abandon(tail.abandon(err))
	}
	if err := producer.begin(); err != nil {
		return Side{}, tail.abandon(err)
	}
	p, err := producer.wait()
	if err != nil {
		return Side{}, tail.abandon(err)
	}
	t, err := tail.wait()
	if err != nil {
		return Side{}, err
	}
	if t.Gaps > 0 || t.Messages != messages {
		return Side{}, fmt.Errorf("the tail of %s got %d of %d messages and %d gaps", who, t.Messages, messages, t.Gaps)
	}
	return Side{Who: who, Value: float64(p.Messages) / p.Seconds, ServerCPU: processCPU(c.cfg.ServerPID) - cpu,
		Delivered: t.At - (p.At - p.Seconds), Workers: []Outcome{p, t}}, nil
}

// settleTime is how long a tail gets to open before the producer starts.
const settleTime = 300 * time.Millisecond

func (j Job) as(what string) Job {
	j.What = what
	return j
}
