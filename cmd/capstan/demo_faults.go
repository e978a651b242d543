package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

const (
	// demoSettle is how long the set runs on two members after the first acknowledgement, before the
	// killed one comes back.
	demoSettle = 2 * time.Second
	// demoHold is how long a frozen primary stays frozen after the first acknowledgement without it: the
	// set has gone on when it wakes up and runs the inserts in its buffers, which must not count.
	demoHold = 3 * time.Second
	// demoRoom is how much of the load must be left for a freeze: an outage takes two to four seconds,
	// and one that outlasts the load would be measured short.
	demoRoom = 5 * time.Second
	// demoLag is by how much a member may be behind the primary and still count as caught up; what the
	// primary knows of the others is itself a heartbeat old, a quarter of a second.
	demoLag = time.Second
	// demoAsk bounds one question about the set's state.
	demoAsk = 2 * time.Second
)

// demoFault is one fault of the demo and what it cost.
type demoFault struct {
	member string // whom it met
	verb   string // "killed" or "frozen"
	how    string // "kill -9" or "SIGSTOP"
	undone string // when it was undone, for the table
	outage latency.Outage
	// longest is the longest silence after the fault.
	longest time.Duration
}

func (f demoFault) name() string { return f.member + " " + f.verb }

// length writes how long nothing was acknowledged. A load that ends with the fault shows nothing.
func (f demoFault) length() string {
	if f.outage.Length() == 0 {
		return "not seen"
	}
	return latency.Text(f.outage.Length())
}

func (f demoFault) caughtUp() string {
	switch {
	case f.outage.Length() == 0:
		return "-"
	case f.outage.CaughtUp < f.outage.Back:
		return "not by the end"
	}
	return latency.Text(f.outage.CaughtUp - f.outage.Back)
}

// demoMoments returns the numbers of the messages at which the primary is killed and frozen: random
// places around the first and the second third, which depend on nothing but the seed.
func demoMoments(count int, seed uint64) (kill, freeze int64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	place := func(from float64) int64 { return max(1, int64(float64(count)*(from+0.1*rng.Float64()))) }
	kill = place(0.28)
	return kill, place(0.61)
}

// faults kills the primary in the first half of the load, starts it again when the set has recovered,
// and freezes the next one in the second half, if the set is whole again in time.
func (d *demo) faults(ctx context.Context, c *localcluster.Cluster, r *demoResult) error {
	kill, freeze := demoMoments(r.load.count, d.seed)
	if err := d.kill(ctx, c, r, kill); err != nil {
		return err
	}
	watch, err := mongo.Connect(options.Client().ApplyURI(c.URI()).SetAppName("capstan demo, state").SetServerSelectionTimeout(demoAsk))
	if err != nil {
		return err
	}
	defer func() { _ = watch.Disconnect(context.WithoutCancel(ctx)) }() // it has only asked
	log := demoLog(d.env)
	err = awaitWhole(ctx, watch, func() bool { return r.load.left() < demoRoom })
	if errors.Is(err, errTooLate) {
		log.Info().Err(err).Msg("no freeze")
		r.skipped = fmt.Sprintf("No primary was frozen: less than %s of the load was left when the killed one had caught up. A larger --count leaves more.", seconds(demoRoom))
		d.env.note("     %s", r.skipped)
		return nil
	}
	if err != nil {
		return err
	}
	d.env.note("     all three members are in service and caught up")
	if err := d.freeze(ctx, c, r, freeze); err != nil {
		return err
	}
	// That the thawed one comes back is worth a line, but no part of the verdict.
	over := time.Now().Add(demoPatience)
	if err := awaitWhole(ctx, watch, func() bool { return time.Now().After(over) }); err != nil {
		log.Info().Err(err).Msg("after the thaw")
		return ctx.Err()
	}
	d.env.note("     all three members are in service and caught up")
	return nil
}

// kill kills the primary when message number is sent, and starts it again.
func (d *demo) kill(ctx context.Context, c *localcluster.Cluster, r *demoResult, number int64) error {
	f, err := d.strike(ctx, c, r, number, demoFault{verb: "killed", how: "kill -9"}, c.Kill)
	if err != nil {
		return err
	}
	if err := d.awaitAcknowledgement(ctx, r, f, demoSettle); err != nil {
		return err
	}
	if _, err := c.Start(ctx, f.member); err != nil {
		return err
	}
	f.undone = fmt.Sprintf("; started again after %s", seconds(time.Since(r.load.start)-f.outage.Fault))
	d.env.note("     %s is started again", f.member)
	return nil
}

// freeze freezes the primary when message number is sent, and thaws it.
func (d *demo) freeze(ctx context.Context, c *localcluster.Cluster, r *demoResult, number int64) error {
	f, err := d.strike(ctx, c, r, number, demoFault{verb: "frozen", how: "SIGSTOP"}, c.Freeze)
	if err != nil {
		return err
	}
	err = d.awaitAcknowledgement(ctx, r, f, demoHold)
	if _, thawed := c.Thaw(context.WithoutCancel(ctx), f.member); thawed != nil { // also when the wait was in vain
		return errors.Join(err, thawed)
	}
	f.undone = fmt.Sprintf("; thawed after %s", seconds(time.Since(r.load.start)-f.outage.Fault))
	d.env.note("     %s is thawed", f.member)
	return err
}

// strike waits until message number is sent and does what the fault says to the primary. It returns the
// fault as r keeps it.
func (d *demo) strike(ctx context.Context, c *localcluster.Cluster, r *demoResult, number int64, f demoFault,
	do func(context.Context, string) (localcluster.Member, error)) (*demoFault, error) {
	l := r.load
	if !l.reach(ctx, number) {
		return nil, fmt.Errorf("%s the primary: the load ended before message %d", f.how, number)
	}
	for _, m := range c.Status(ctx) {
		if m.Role == localcluster.RolePrimary {
			f.member = m.Name
		}
	}
	if f.member == "" {
		return nil, fmt.Errorf("%s the primary: there is none", f.how)
	}
	number, f.outage.Fault = l.sent.Load(), time.Since(l.start)
	if _, err := do(ctx, f.member); err != nil {
		return nil, err
	}
	r.faults = append(r.faults, f)
	d.env.note("     %s of the primary %s at message %s", f.how, f.member, humanize.Comma(number))
	return &r.faults[len(r.faults)-1], nil
}

// awaitAcknowledgement waits until a message is acknowledged that was sent after the fault, which only
// another primary can do, and then for as long as still says.
func (d *demo) awaitAcknowledgement(ctx context.Context, r *demoResult, f *demoFault, still time.Duration) error {
	patience := time.NewTimer(demoPatience)
	defer patience.Stop()
	seen := r.load.fresh()
	select {
	case <-seen:
	case <-r.load.ended:
		return nil // a small load may have had all its answers before the fault
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return fmt.Errorf("nothing was acknowledged any more after %s of the primary", f.how)
	}
	d.env.note("     writes are acknowledged again, by a new primary")
	return pace.Sleep(ctx, still)
}

// errTooLate says that the set was not whole in time.
var errTooLate = errors.New("the set was not whole in time")

// awaitWhole waits until the set is whole. The error is errTooLate, with what was missing, once over
// returns true; or that of ctx.
func awaitWhole(ctx context.Context, client *mongo.Client, over func() bool) error {
	for {
		err := whole(ctx, client)
		if over() {
			return errors.Join(errTooLate, err)
		}
		if err == nil {
			return nil
		}
		if err := pace.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// whole returns nil if the set has a primary, and every other member follows it closely.
func whole(ctx context.Context, client *mongo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, demoAsk)
	defer cancel()
	var status struct {
		Members []demoState `bson:"members"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Decode(&status); err != nil {
		return fmt.Errorf("ask for the set's state: %w", err)
	}
	return wholeIs(status.Members)
}

// demoState is what the primary knows of a member.
type demoState struct {
	Name    string    `bson:"name"`
	State   string    `bson:"stateStr"`
	Applied time.Time `bson:"lastAppliedWallTime"`
}

func wholeIs(members []demoState) error {
	var newest time.Time
	primary := false
	for _, m := range members {
		if m.State == "PRIMARY" {
			primary, newest = true, m.Applied
		}
	}
	if !primary {
		return errors.New("no member is primary")
	}
	for _, m := range members {
		switch lag := newest.Sub(m.Applied); {
		case m.State != "PRIMARY" && m.State != "SECONDARY":
			return fmt.Errorf("%s is %s", m.Name, m.State)
		case lag > demoLag:
			return fmt.Errorf("%s is %s behind", m.Name, latency.Text(lag))
		}
	}
	return nil
}
