package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

const tailHelp = `Print what is in a stream, or what happens in anything else, and follow it.

NAME is one of
  DATABASE.COLLECTION   a stream (any capped collection, also one that another program writes to): its
                        messages; any other collection: its changes
  DATABASE, '*'         the changes of all collections of a database, or of all databases
Changes are inserts, updates, replaces and deletes, and what happens to collections and indexes. They need
a replica set (one member is enough). What does not exist yet, or is empty, is waited for.

--from is where to begin, --until where to end:
  earliest, latest           the oldest message that is still there, or as far back as the oplog goes;
                             what comes from now on (the default)
  1764532800.7-692c9e80…     a position, as capstan prints it: begins behind it, ends with it
  2026-11-30T12:00:00Z       a time on the server's clock, to the second; also 2026-11-30 and
                             2026-11-30 12:00, in UTC
  -10m, -2d                  so long ago

--output text prints time, subject and data; of a change time, operation, collection, _id, and what is
different now. json prints the whole message, or event, as one line of Extended JSON with its position;
raw the data only, or the document of an insert or replace: text as it is, everything else as JSON.

--filter is a query in MongoDB's language, applied here and not on the server, so that the count of
lost messages stays right: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $regex $size $all $elemMatch
$not $and $or $nor. It looks at the whole message: {"data.delay": {"$gt": 60}}; of a change at the event:
{"operationType": "delete"}, {"fullDocument.total": {"$gt": 100}}. Deletes and updates carry no document.

--visibility majority (the default on a replica set) prints only what no election can take back;
local prints it a few milliseconds earlier. Changes always come when a majority has them.

Messages lost to this tail (overwritten before it read them) are reported on standard error as they are
noticed, with the count per producer; --on-gap stop ends with code 5 instead. Changes that the oplog no
longer holds always end with code 5: nobody can count them.

--durable NAME stores the position under the name, and goes on from there the next time (then --from
is for the first time only): at-least-once, a kill -9 costs at most a second of repeated messages.
`

const tailExample = `  capstan tail demo.lines --from earliest --output raw
  capstan tail demo.events --from -10m --subject 'orders.*.paid' --filter '{"data.total": {"$gt": 100}}'
  capstan tail demo.events --from earliest --exit-at-end --output json | jq .data
  capstan tail demo.events --durable audit --output json >> audit.ndjson
  capstan tail shop --filter '{"operationType": {"$in": ["update", "delete"]}}'
  capstan tail '*' --output json | jq -c '[.operationType, .ns.db, .ns.coll]'`

// tailOptions are the flags of tail.
type tailOptions struct {
	name       namespace
	changes    bool // follow the changes, whatever it is
	from       record.Start
	until      until
	count      int64
	exitAtEnd  bool
	timeout    time.Duration
	subject    string
	filter     *match.Matcher // nil: all
	format     format
	visibility tailer.Visibility
	durable    string
	latencyCSV string
	stopOnGap  bool
}

// tailFlags are the flags as they are typed.
type tailFlags struct {
	from, until, filter, output, visibility, onGap string
	canonical                                      bool
}

func newTailCmd(env *environ) *cobra.Command {
	var o tailOptions
	var f tailFlags
	cmd := &cobra.Command{
		Use:     "tail NAME",
		Short:   "print the messages of a stream, or the changes of anything else, and follow it",
		Long:    tailHelp,
		Example: tailExample,
		Args:    exactArgs(1, "one NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(&o, args[0], time.Now()); err != nil {
				return err
			}
			return tail(cmd.Context(), env, o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "latest", "where to begin: earliest, latest, a position, a time (UTC), or -10m or -2d")
	fl.StringVar(&f.until, "until", "", "where to end: a position (inclusive) or a time (exclusive)")
	fl.Int64Var(&o.count, "count", 0, "end after this many messages (0: never)")
	fl.BoolVar(&o.exitAtEnd, "exit-at-end", false, "end when everything that is there has been printed")
	fl.DurationVar(&o.timeout, "timeout", 0, "end after this time with code 124 (0: never)")
	fl.BoolVar(&o.changes, "changes", false, "follow the changes, also of a stream (its inserts, and the deletes of its rollover)")
	fl.StringVar(&o.subject, "subject", "", "subjects to print: * is one token, > is the rest")
	fl.StringVar(&f.filter, "filter", "", "query on the message, as JSON")
	fl.StringVar(&f.output, "output", outputText, "text, json or raw")
	fl.BoolVar(&f.canonical, "canonical", false, "print JSON in the canonical form, which keeps every type")
	fl.StringVar(&f.visibility, "visibility", "", "local or majority (default: majority on a replica set)")
	fl.StringVar(&o.durable, "durable", "", "name under which the position is stored")
	fl.StringVar(&o.latencyCSV, "latency-csv", "", "file for loc,val: index, and seconds from the message's time to its delivery")
	fl.StringVar(&f.onGap, "on-gap", "report", "report or stop, when messages were lost")
	return cmd
}

func (f tailFlags) parse(o *tailOptions, name string, now time.Time) (err error) {
	if o.name, err = parseScope(name); err != nil {
		return err
	}
	if o.from, err = parseStart(f.from, now); err != nil {
		return err
	}
	if o.until, err = parseUntil(f.until, now); err != nil {
		return err
	}
	if o.format, err = newFormat(f.output, f.canonical); err != nil {
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
	if o.name.coll == "" || o.changes {
		if err := o.checkChanges(); err != nil {
			return err
		}
	}
	if o.count < 0 || o.timeout < 0 {
		return usageError("--count and --timeout must not be negative")
	}
	return nil
}

func parseFilter(s string) (*match.Matcher, error) {
	if s == "" {
		return nil, nil
	}
	v, err := extJSONToBSON([]byte(s))
	if err != nil {
		return nil, usageError("--filter: %w", err)
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, usageError(`--filter wants a JSON object, for example {"data.delay": {"$gt": 60}}`)
	}
	m, err := match.Compile(slices.Clone(doc))
	if err != nil {
		return nil, usageError("--filter: %w", err)
	}
	return m, nil
}

func parseVisibility(s string) (tailer.Visibility, error) {
	switch s {
	case "":
		return tailer.Auto, nil
	case tailer.Local.String():
		return tailer.Local, nil
	case tailer.Majority.String():
		return tailer.Majority, nil
	}
	return 0, usageError("--visibility is local or majority, not %q", s)
}

func parseOnGap(s string) (stop bool, err error) {
	switch s {
	case "report":
		return false, nil
	case "stop":
		return true, nil
	}
	return false, usageError("--on-gap is report or stop, not %q", s)
}

// endless reports whether stopping on request is the normal end.
func (o tailOptions) endless() bool { return o.count == 0 && !o.until.set() && !o.exitAtEnd }

// accepts applies the filter.
func (o tailOptions) accepts(doc bson.Raw) bool { return o.filter == nil || o.filter.Match(doc) }

// config is what the tailer is asked for.
func (o tailOptions) config(env *environ, start record.Start, now time.Time) tailer.Config {
	c := tailer.Config{
		Start:      start,
		Visibility: o.visibility,
		Subject:    o.subject,
		Progress:   time.Second,
		UntilEnd:   o.exitAtEnd || o.until.past(now),
		Logger:     env.log,
		Hooks: tailer.Hooks{
			OnWait: firstOf(func(reason string) { env.note("waiting: %s", reason) }),
		},
	}
	if o.filter != nil {
		c.Filter = o.filter.Match
	}
	if !o.until.pos.IsZero() {
		// The last message must come here even if it is not to be printed: print asks again.
		c.Subject = ""
		c.Filter = nil
	}
	if o.exitAtEnd {
		c.Wait = tailer.FailIfMissing
	}
	if o.stopOnGap {
		c.OnGap = tailer.StopOnGap
	}
	return c
}

// firstOf returns f for the first call of each run of equal arguments.
func firstOf(f func(string)) func(string) {
	last := ""
	return func(s string) {
		if s != last {
			last = s
			f(s)
		}
	}
}

// tail prints until it is asked to stop, and says the summary.
func tail(ctx context.Context, env *environ, o tailOptions) error {
	t, err := newTailRun(ctx, env, o)
	if err != nil {
		return err
	}
	err = t.run(ctx)
	err = errors.Join(err, t.close(ctx))
	if brokenPipe(err) {
		return err // quietly: whoever closed it knows
	}
	if err == nil || t.delivered > 0 || errors.Is(err, context.Canceled) || errors.Is(err, errTimeout) {
		env.note("%s", t.summary())
	}
	if errors.As(err, new(*stopError)) && o.endless() {
		return nil
	}
	return err
}

// summary says what came, what was lost, and how to go on.
func (t *tailRun) summary() string {
	lost := fmt.Sprintf("lost %d", t.lost)
	switch {
	case t.uncounted:
		lost = "lost: not known, as the messages carry no src and seq"
	case t.lostMore:
		lost = fmt.Sprintf("lost at least %d", t.lost)
	}
	s := fmt.Sprintf("%s: delivered %d, %s", t.o.name, t.delivered, lost)
	switch {
	case t.o.durable != "":
		return s + fmt.Sprintf(", position %s; go on with --durable %s", t.position, t.o.durable)
	case t.position.IsZero():
		return s
	}
	return s + fmt.Sprintf("; go on with --from %s", t.position)
}
