package outage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/pace"
)

// stored counts the documents that are there: by writer, and by seq.
type stored map[string]map[int64]int

func (s stored) add(doc bson.Raw, field string) {
	src, _ := doc.Lookup(field).StringValueOK()
	seq, _ := doc.Lookup("seq").AsInt64OK()
	s.count(src, seq)
}

func (s stored) count(src string, seq int64) {
	if s[src] == nil {
		s[src] = make(map[int64]int)
	}
	s[src][seq]++
}

// settleUp waits until the tails have delivered everything, and finds out what became of every write.
func (t *tryout) settleUp(ctx context.Context) error {
	t.trial.Events = t.journal.all()
	src, last := lastAcknowledged(t.trial.Events)
	if t.spec.control == nil {
		err := t.await(ctx, "the tails", followPatience, func() bool { return t.tail.reached(src, last) && t.consume.reached(src, last) })
		if err != nil && !errors.Is(err, errWaited) {
			return err // what did not come is counted below
		}
	}
	// A write of this moment that every member has: so has it everything before, also what w: 1 acknowledged last.
	if err := t.cluster.AwaitHealthy(ctx); err != nil {
		return err
	}
	there, err := t.readStored(ctx)
	if err != nil {
		return err
	}
	v := &t.trial.Verdict
	v.count(t.trial.Events, there)
	if v.RolledBack, v.RolledBackAcknowledged, err = t.rolledBack(there); err != nil {
		return err
	}
	if v.Unequal, err = t.unequal(ctx); err != nil {
		return err
	}
	if t.spec.control == nil {
		for _, f := range []*follower{t.tail, t.consume} {
			f.end()
		}
		t.judgeFollowers(src, there)
	}
	v.Linearizable = CheckSets(t.trial, there)
	if t.trial.Servers, err = t.serverEvents(); err != nil {
		return err
	}
	t.trial.Ended = Now()
	return nil
}

// lastAcknowledged returns the prober's src, and the highest seq that it was acknowledged.
func lastAcknowledged(events []Event) (src string, seq int64) {
	for _, e := range events {
		if e.Role == Prober && e.Kind == KindWrite && e.OK && e.Seq > seq {
			src, seq = e.Src, e.Seq
		}
	}
	return src, seq
}

// count compares what the clients were told with what is there.
func (v *Verdict) count(events []Event, there stored) {
	known := map[string]bool{}
	for _, e := range events {
		if e.Kind != KindWrite || e.Src == "" || e.Seq == 0 || e.Role == Plain {
			continue // the plain client is a control of its own
		}
		known[e.Src] = true
		n := there[e.Src][e.Seq]
		v.Sent++
		switch {
		case e.OK:
			v.Acknowledged++
			if n == 0 {
				v.Lost++
			}
		case e.Outcome == Unknown:
			v.UnknownCalls++
			if n > 0 {
				v.UnknownPresent++
			}
		case n > 0:
			v.Resurrected++
		}
	}
	for src := range known {
		for _, n := range there[src] {
			if n > 1 {
				v.Doubled++
			}
		}
	}
}

// readStored reads the documents of this trial's writers, as a majority has them.
func (t *tryout) readStored(ctx context.Context) (stored, error) {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	there := make(stored)
	db := t.client.Database(Database, options.Database().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
	role := Writer
	if t.spec.control != nil {
		role = t.spec.control.role
	}
	type read struct {
		coll, field string
		filter      bson.D
	}
	reads := []read{{CollectionOf(role), "writer", bson.D{{Key: "writer", Value: t.name}}}}
	if t.spec.control == nil {
		reads = append(reads, read{Messages, "src", bson.D{{Key: "src", Value: bson.Regex{Pattern: "^" + regexp.QuoteMeta(t.name) + "/"}}}})
	}
	for _, r := range reads {
		cur, err := db.Collection(r.coll).Find(ctx, r.filter)
		if err != nil {
			return nil, fmt.Errorf("read back %s: %w", r.coll, err)
		}
		for cur.Next(ctx) {
			there.add(cur.Current, r.field)
		}
		if err := errors.Join(cur.Err(), cur.Close(ctx)); err != nil {
			return nil, fmt.Errorf("read back %s: %w", r.coll, err)
		}
	}
	return there, nil
}

// unequal counts the members whose data are not the first one's, and still are not after a while: what was in a
// network that was cut may arrive after its sender has ended, while one member is asked after the other.
func (t *tryout) unequal(ctx context.Context) (int, error) {
	until := time.Now().Add(equalPatience)
	for {
		n, err := t.unequalNow(ctx)
		if n == 0 || err != nil || time.Now().After(until) {
			return n, err
		}
		if err := pace.Sleep(ctx, time.Second); err != nil {
			return n, err
		}
	}
}

// equalPatience is how long members may take to be equal once nobody writes any more.
const equalPatience = 20 * time.Second

func (t *tryout) unequalNow(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	var hashes []bson.Raw
	for _, m := range t.cluster.Members() {
		uri, err := t.cluster.MemberURI(m.Name)
		if err != nil {
			return 0, err
		}
		h, err := t.hash(ctx, uri)
		if err != nil {
			return 0, fmt.Errorf("compare members: ask %s: %w", m.Name, err)
		}
		hashes = append(hashes, h)
	}
	n := 0
	for _, h := range hashes[1:] {
		if !bytes.Equal(h, hashes[0]) {
			n++
		}
	}
	return n, nil
}

// hash returns the server's own hash of each collection of the experiment.
func (t *tryout) hash(ctx context.Context, uri string) (bson.Raw, error) {
	c, err := mongo.Connect(t.options(uri))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Disconnect(ctx) }() // it has only asked
	names := bson.A{Writes, Messages, CollectionOf(Plain), CollectionOf(FreshID), CollectionOf(One), probes}
	reply, err := c.Database(Database).RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}, {Key: "collections", Value: names}}).Raw()
	if err != nil {
		return nil, err
	}
	return bson.Raw(reply.Lookup("collections").Value), nil
}

// judgeFollowers asks the oracle about the tail and the consumer.
func (t *tryout) judgeFollowers(src string, there stored) {
	var rec history.Recorder
	for _, e := range t.trial.Events {
		if e.Role != Prober || e.Kind != KindWrite || e.Src == "" || e.Seq == 0 {
			continue
		}
		key := history.Key{Src: e.Src, Seq: e.Seq}
		rec.Sent(key)
		switch {
		case e.OK:
			rec.Acknowledged(key)
		case e.Outcome == Unknown:
			rec.Unknown(key)
		default:
			rec.Rejected(key)
		}
	}
	for seq, n := range there[src] {
		for range n {
			rec.Stored(history.Key{Src: src, Seq: seq})
		}
	}
	v := &t.trial.Verdict
	for _, f := range []*follower{t.tail, t.consume} {
		events, gaps := f.events(src)
		for _, e := range events {
			rec.Add(e)
		}
		v.TailGaps += gaps
	}
	verdict := history.Check(rec.Events(), history.Rules{Stored: true,
		Readers: map[string]history.ReaderRules{tailReader: {}, consumeReader: {}}})
	tail, consume := verdict.Reader(tailReader), verdict.Reader(consumeReader)
	v.TailMissed, v.TailDoubled, v.TailReordered = tail.Lost, tail.Duplicated, verdict.ByRule[history.RuleReordered]
	v.ConsumeMissed = consume.Lost
	v.ConsumeSkipped = consume.Reported + consume.ReportedAtMost
	for _, violation := range verdict.First {
		v.Notes = append(v.Notes, violation.String())
	}
}

// rolledBack counts this trial's documents in the members' rollback files, and those of them that had been
// acknowledged and are gone.
func (t *tryout) rolledBack(there stored) (all, acknowledged int, err error) {
	acked := make(stored)
	for _, e := range t.trial.Events {
		if e.Kind == KindWrite && e.OK {
			acked.count(e.Src, e.Seq)
		}
	}
	seen := make(stored)
	for _, m := range t.cluster.Members() {
		files, err := filepath.Glob(filepath.Join(m.Dir, "data", "rollback", "*", "*.bson"))
		if err != nil {
			return 0, 0, err
		}
		for _, path := range files {
			if err := eachDocument(path, func(doc bson.Raw) {
				for _, field := range []string{"writer", "src"} {
					if name, ok := doc.Lookup(field).StringValueOK(); ok && (name == t.name || bytes.HasPrefix([]byte(name), []byte(t.name+"/"))) {
						seen.add(doc, field)
					}
				}
			}); err != nil {
				return 0, 0, fmt.Errorf("read rollback file: %w", err)
			}
		}
	}
	for src, seqs := range seen {
		for seq := range seqs {
			all++
			if acked[src][seq] > 0 && there[src][seq] == 0 {
				acknowledged++
			}
		}
	}
	for src, seqs := range acked {
		for _, seq := range slices.Sorted(maps.Keys(seqs)) {
			if src != t.name+"-plain" && there[src][seq] == 0 && seen[src][seq] == 0 {
				t.trial.Verdict.Notes = append(t.trial.Verdict.Notes, fmt.Sprintf("%s:%d was acknowledged, and is neither there nor in a rollback file", src, seq))
			}
		}
	}
	return all, acknowledged, nil
}

// eachDocument reads a file of BSON documents, one after the other, as mongod writes for a rollback.
func eachDocument(path string, f func(bson.Raw)) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		if len(b) < 5 {
			return io.ErrUnexpectedEOF
		}
		n := int(binary.LittleEndian.Uint32(b))
		if n < 5 || n > len(b) {
			return io.ErrUnexpectedEOF
		}
		f(bson.Raw(b[:n]))
		b = b[n:]
	}
	return nil
}

// serverEvents reads the members' logs of the trial's time.
func (t *tryout) serverEvents() ([]ServerEvent, error) {
	toMoment := func(at time.Time) Moment { return Moment(at.Sub(t.offset).Microseconds()) }
	var all []ServerEvent
	for _, m := range t.cluster.Members() {
		f, err := os.Open(m.Log())
		if err != nil {
			return nil, fmt.Errorf("read log of %s: %w", m.Name, err)
		}
		_, err = f.Seek(t.logs[m.Name], io.SeekStart)
		var events []ServerEvent
		if err == nil {
			events, err = ReadServerLog(f, m.Name, toMoment, t.trial.Begun, Now())
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("read log of %s: %w", m.Name, err)
		}
		all = append(all, events...)
	}
	return all, nil
}

// version asks a member for its version.
func (l *lane) version(ctx context.Context) (string, error) {
	var info struct {
		Version string `bson:"version"`
	}
	if err := l.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return "", fmt.Errorf("ask the server for its version: %w", err)
	}
	return info.Version, nil
}
