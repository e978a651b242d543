package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

const consumeHelp = `Run a program for every message of a stream, at-least-once, and remember how far it came.

--exec CMD is run by sh and stays: it gets one line per message on its standard input (the line of
tail --output json) and answers each with one line on its standard output:

  ok            the message is handled; it will not come again. "ok POSITION" is compared with the
                position of the message, so that an answer too many cannot be taken for the next one
  error TEXT    it is not, and comes again after a while, --max-attempts times
  reject TEXT   it is not, and never will be: no further attempt

The next line comes after the answer. A program that ends, or takes longer than --handler-timeout, is
started again and gets the same message; its standard error is passed on. With --workers N there are N
of them. When capstan stops, the program's standard input is closed, and it has some seconds to end.

With --per-message, CMD is run anew for every message, which it gets on standard input; exit code 0
means handled. What it prints is passed on; when nobody reads that any more (| head), capstan stops in
front of the message.

A message that failed is tried again after --retry-delay, then after twice as long, and so on up to
half a minute (each wait up to a half more or less, at random), in all --max-attempts times: with the
defaults some ten seconds, which the restart of a backend may take. Messages behind it wait meanwhile.
One that fails --max-attempts times goes to the collection --dead-letters of the stream's
database; without that, the consumer stops in front of it with code 1.

That collection is an ordinary one, made by the first dead letter; read it with any MongoDB client. A
document holds the consumer, stream, position, src, seq, subject, error, attempts and time, and under
"document" the whole message ("parts" instead says that it was too large, and is in documents with
"part_of"). capstan does not take them up again. To replay
one, give its message to the program, or send its data as a new message, which every consumer of the
stream gets; and then delete it:

  mongosh --quiet demo --eval 'print(EJSON.stringify(db.undelivered.findOne({_id: "ID"}).document))' | ./handle-events
  mongosh --quiet demo --eval 'print(EJSON.stringify(db.undelivered.findOne({_id: "ID"}).document.data))' |
    capstan produce demo.events --input extjson
  mongosh --quiet demo --eval 'db.undelivered.deleteOne({_id: "ID"})'

Messages with the same key are handled in their order, one after the other: --key src (one order per
producer, the default), subject, a field such as data.user, or none.

The position is stored under the --durable name, in the collection ` + checkpointCollection + ` of the
stream's database, or in the file of --checkpoint-file. After a crash the messages behind the last
stored position come again, so the program must bear a repetition (_id tells). Two consumers with one
name fence each other: the older one ends.
`

const consumeExample = `  capstan consume demo.events --durable billing --exec ./handle-events
  capstan consume demo.events --durable mail --per-message --exec 'mail -s event ops@example.org' --dead-letters undelivered
  capstan consume demo.events --durable stats --from latest --workers 4 --key data.user --exec 'python3 -u stats.py'
  capstan consume demo.lines --durable echo --exec 'while read -r line; do echo "$line" >&2; echo ok; done'`

// consumeOptions are the flags of consume.
type consumeOptions struct {
	name           namespace
	durable        string
	command        string
	perMessage     bool
	from           record.Start
	subject        string
	filter         *match.Matcher
	visibility     tailer.Visibility
	stopOnGap      bool
	exitAtEnd      bool
	workers        int
	key            string
	maxAttempts    int
	deadLetters    string
	checkpointFile string
	retryDelay     time.Duration
	handlerTimeout time.Duration
	drainTimeout   time.Duration
	format         format
}

// consumeFlags are the flags as they are typed.
type consumeFlags struct {
	from, filter, visibility, onGap string
	canonical                       bool
}

func newConsumeCmd(env *environ) *cobra.Command {
	var o consumeOptions
	var f consumeFlags
	cmd := &cobra.Command{
		Use:     "consume STREAM --durable NAME --exec CMD",
		Short:   "run a program for every message, at-least-once",
		Long:    consumeHelp,
		Example: consumeExample,
		Args:    exactArgs(1, "one STREAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(&o, args[0], time.Now()); err != nil {
				return err
			}
			return consume(cmd.Context(), env, o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.durable, "durable", "", "name under which the position is stored (required)")
	fl.StringVar(&o.command, "exec", "", "program, run by sh -c (required)")
	fl.BoolVar(&o.perMessage, "per-message", false, "run the program anew for every message; exit code 0 acknowledges")
	fl.StringVar(&f.from, "from", "earliest", "where to begin the first time: earliest (skips nothing), latest, a position, a time, or -10m")
	fl.StringVar(&o.subject, "subject", "", "subjects to handle: * is one token, > is the rest")
	fl.StringVar(&f.filter, "filter", "", "query on the message, as JSON (see tail --help)")
	fl.StringVar(&f.visibility, "visibility", "", "local or majority (default: majority on a replica set)")
	fl.StringVar(&f.onGap, "on-gap", "report", "report or stop, when messages were lost")
	fl.BoolVar(&o.exitAtEnd, "exit-at-end", false, "end when everything that is there has been handled")
	fl.IntVar(&o.workers, "workers", consumer.DefaultWorkers, "messages handled at a time")
	fl.StringVar(&o.key, "key", "src", "what keeps its order: src, subject, a field, or none")
	fl.IntVar(&o.maxAttempts, "max-attempts", consumer.DefaultMaxAttempts, "attempts per message (0: no limit)")
	fl.DurationVar(&o.retryDelay, "retry-delay", consumer.DefaultRetryInitial, "wait before the second attempt; it doubles with each further one")
	fl.StringVar(&o.deadLetters, "dead-letters", "", "collection for messages that were given up")
	fl.StringVar(&o.checkpointFile, "checkpoint-file", "", "file for the position, instead of the database")
	fl.DurationVar(&o.handlerTimeout, "handler-timeout", consumer.DefaultHandlerTimeout, "time for one attempt")
	fl.DurationVar(&o.drainTimeout, "drain-timeout", consumer.DefaultDrainTimeout, "time for messages in hand, when asked to stop")
	fl.BoolVar(&f.canonical, "canonical", false, "hand over JSON in the canonical form, which keeps every type")
	return cmd
}

func (f consumeFlags) parse(o *consumeOptions, name string, now time.Time) (err error) {
	if o.name, err = parseNamespace(name); err != nil {
		return err
	}
	switch {
	case o.durable == "":
		return usageError("--durable is missing: the name under which the position is stored")
	case strings.HasPrefix(o.durable, producerPrefix):
		return usageError("--durable must not begin with %q: these are the names of producers", producerPrefix)
	case strings.TrimSpace(o.command) == "":
		return usageError("--exec is missing: the program to run")
	case o.workers < 1:
		return usageError("--workers must be at least 1")
	case o.retryDelay <= 0:
		return usageError("--retry-delay must be positive")
	case o.maxAttempts < 0 || o.handlerTimeout <= 0 || o.drainTimeout <= 0:
		return usageError("--max-attempts must not be negative, --handler-timeout and --drain-timeout must be positive")
	}
	if o.from, err = parseStart(f.from, now); err != nil {
		return err
	}
	if _, err := record.ParseSubject(o.subject); err != nil {
		return usageError("--subject: %w", err)
	}
	if o.filter, err = parseFilter(f.filter); err != nil {
		return err
	}
	if o.visibility, err = parseVisibility(f.visibility); err != nil {
		return err
	}
	if o.stopOnGap, err = parseOnGap(f.onGap); err != nil {
		return err
	}
	o.format, err = newFormat(outputJSON, f.canonical)
	return err
}

// consumeRun is one run of `capstan consume`.
type consumeRun struct {
	env  *environ
	o    consumeOptions
	opts *options.ClientOptions

	handled, failed, dead, lost atomic.Int64
	lostMore                    atomic.Bool // lost is the least
	uncounted                   atomic.Bool
}

// consume handles messages until it is asked to stop, and says the summary.
func consume(ctx context.Context, env *environ, o consumeOptions) error {
	r := &consumeRun{env: env, o: o}
	var err error
	if r.opts, err = env.clientOptions(); err != nil {
		return err
	}
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return err
	}
	defer closeClient()
	db := client.Database(o.name.db)
	layer, err := env.steps()
	if err != nil {
		return err
	}
	var store consumer.Checkpointer
	if o.checkpointFile != "" {
		store, err = checkpoint.NewFile(o.checkpointFile, checkpoint.FileConfig{})
	} else {
		store, err = checkpoint.NewMongo(db.Collection(checkpointCollection), layer, checkpoint.MongoConfig{})
	}
	if err != nil {
		return err
	}
	cfg := r.config()
	if o.deadLetters != "" {
		if cfg.DeadLetters, err = checkpoint.NewDeadLetters(db.Collection(o.deadLetters), layer, checkpoint.MongoConfig{}); err != nil {
			return err
		}
	}
	h, closeHandler := r.handler()
	c, err := consumer.New(o.durable, r.open, h, store, cfg)
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	closeHandler()
	if err == nil || !c.Status().Seen.IsZero() {
		env.note("%s%s", r.summary(c.Status()), inHand(err))
	}
	return r.advise(err)
}

// advise says how a message that cannot be handled can be set aside.
func (r *consumeRun) advise(err error) error {
	if _, ok := errors.AsType[*consumer.HandlerError](err); ok && r.o.deadLetters == "" && !brokenPipe(err) {
		return fmt.Errorf("%w: set it aside with --dead-letters COLLECTION, or correct the program", err)
	}
	return err
}

func (r *consumeRun) config() consumer.Config {
	attempts := r.o.maxAttempts
	if attempts == 0 {
		attempts = -1
	}
	return consumer.Config{
		Stream:         r.o.name.String(),
		Start:          r.o.from,
		Workers:        r.o.workers,
		Key:            keyOf(r.o.key),
		HandlerTimeout: r.o.handlerTimeout,
		MaxAttempts:    attempts,
		RetryInitial:   r.o.retryDelay,
		OnGap:          r.gap,
		DrainTimeout:   r.o.drainTimeout,
		HardStop:       r.env.stop.hard,
		Logger:         r.env.log,
		Hooks: consumer.Hooks{
			OnHandled: func(record.Record, int, time.Duration) { r.handled.Add(1) },
			OnFailure: func(record.Record, int, error) { r.failed.Add(1) },
			OnRetry: func(m record.Record, attempt int, err error) {
				r.env.note("attempt %d at message %s failed: %v", attempt, m.Position, err)
			},
			OnDeadLetter: func(d record.DeadLetter) {
				r.dead.Add(1)
				r.env.say("message %s was given up after %s and is in %s.%s: %s", d.Record.Position, attemptsText(d.Attempts), r.o.name.db, r.o.deadLetters, d.Err)
			},
		},
	}
}

// keyOf returns what keeps its order.
func keyOf(key string) func(record.Record) string {
	switch key {
	case "src":
		return nil // the consumer's default
	case "subject":
		return func(m record.Record) string { return m.Subject }
	case "none":
		return func(m record.Record) string { return m.Position.ID.String() }
	}
	path := strings.Split(key, ".")
	return func(m record.Record) string {
		v, err := m.Raw.LookupErr(path...)
		if err != nil {
			return ""
		}
		return string(append([]byte{byte(v.Type)}, v.Value...))
	}
}

// errStopOnGap is the reason of --on-gap stop.
var errStopOnGap = errors.New("stopped (--on-gap stop)")

// gap reports lost messages, also with -q (I5).
func (r *consumeRun) gap(m record.Record) error {
	r.lost.Add(m.Gap.Exact())
	if !m.Gap.Complete() {
		r.lostMore.Store(true)
	}
	if m.Gap.Uncounted {
		r.uncounted.Store(true)
	}
	if r.o.stopOnGap {
		return errStopOnGap
	}
	r.env.say("gap: %s", m.Gap)
	return nil
}

// open makes the tail that the consumer reads.
func (r *consumeRun) open(_ context.Context, start record.Start) (consumer.Source, error) {
	c := tailer.Config{
		Start:      start,
		Visibility: r.o.visibility,
		Subject:    r.o.subject,
		Progress:   time.Second,
		UntilEnd:   r.o.exitAtEnd,
		Logger:     r.env.log,
		Hooks:      tailer.Hooks{OnWait: firstOf(func(reason string) { r.env.note("waiting: %s", reason) })},
	}
	if r.o.filter != nil {
		c.Filter = func(doc bson.Raw) bool { return r.o.filter.Match(doc) }
	}
	if r.o.exitAtEnd {
		c.Wait = tailer.FailIfMissing
	}
	return tailer.New(r.opts, r.o.name.db, r.o.name.coll, c)
}

// handler returns what runs the program, and what ends it.
func (r *consumeRun) handler() (consumer.Handler, func()) {
	if r.o.perMessage {
		return &messageRunner{env: r.env, command: r.o.command, format: r.o.format}, func() {}
	}
	p := newChildPool(r.env, r.o.command, r.o.format, r.o.workers)
	return p, p.close
}

func (r *consumeRun) summary(s consumer.Status) string {
	lost := fmt.Sprintf("lost %d", r.lost.Load())
	switch {
	case r.uncounted.Load():
		lost = "lost: not known, as the messages carry no src and seq"
	case r.lostMore.Load():
		lost = fmt.Sprintf("lost at least %d", r.lost.Load())
	}
	text := fmt.Sprintf("%s: handled %d, failed attempts %d, dead letters %d, %s", r.o.name, r.handled.Load(), r.failed.Load(), r.dead.Load(), lost)
	if !s.Safe.IsZero() {
		text += fmt.Sprintf(", position %s", s.Safe)
	}
	return text + fmt.Sprintf("; go on with --durable %s", r.o.durable)
}

// inHand says what becomes of the messages that a hard stop interrupted, or "".
func inHand(err error) string {
	n := 0
	if e, ok := errors.AsType[*consumer.UnfinishedError](err); ok {
		n = e.Records
	} else if e, ok := errors.AsType[*consumer.HungError](err); ok {
		n = 1 + e.Others
	}
	switch n {
	case 0:
		return ""
	case 1:
		return "; the message in hand comes again"
	}
	return fmt.Sprintf("; the %d messages in hand come again", n)
}

func attemptsText(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}
