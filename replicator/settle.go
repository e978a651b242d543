package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// maxTurns is how often one document may be refused while others take its place in a unique index. Where the source changes
// meanwhile, versions that were read at different moments stand in each other's way, and documents that share a few values need
// many turns; without an end are only those of a unique index that the source does not have.
const maxTurns = 100

// unsettled is a document that cannot be applied.
type unsettled struct {
	id  bson.RawValue
	op  string
	err error
}

// refused deals with ops that were refused: conflicts over a unique index are settled, the rest become dead letters (I2: before the
// checkpoint passes them). id returns the _id of an op by its index.
func (l *Link) refused(ctx context.Context, c CollectionState, list []Refusal, at record.Position, id func(int) bson.RawValue) error {
	if len(list) == 0 {
		return nil
	}
	var ids []bson.RawValue
	var dead []unsettled
	for _, r := range list {
		if r.Holder.IsZero() {
			dead = append(dead, unsettled{id: id(r.Index), op: "write", err: r.Err})
			continue
		}
		ids = append(ids, id(r.Index))
	}
	if len(ids) > 0 {
		seen := c.Seen
		if at.TS.Compare(seen) > 0 {
			seen = at.TS
		}
		l.set1(func() { l.state.Totals.Conflicts += int64(len(ids)) })
		left, err := l.settle(ctx, c, ids, seen)
		if err != nil {
			return err
		}
		dead = append(dead, left...)
	}
	if len(dead) == 0 {
		return nil
	}
	return l.bury(ctx, l.lettersOf(c, dead, at))
}

// settle brings documents to their present version at the source, one after the other, where unique indexes are in the way: whoever
// holds a value at the destination is removed there, and is itself brought to its present version afterwards. (Changing it in
// place is not enough: two documents that have swapped their values stand in each other's way.) Until then it is noted as a
// dead letter, so that a crash in between does not lose it. It returns those that cannot be applied.
func (l *Link) settle(ctx context.Context, c CollectionState, ids []bson.RawValue, at record.Timestamp) ([]unsettled, error) {
	l.resolving.Lock()
	defer l.resolving.Unlock()
	turns := make(map[string]int)
	noted := make(map[string]Letter)
	var left []unsettled
	for len(ids) > 0 {
		id := ids[0]
		ids = ids[1:]
		key := canonical(id)
		holder, err := l.present(ctx, c, id, at)
		switch {
		case err == nil:
		case errors.As(err, new(*refusalError)):
			reason := err
			turns[key]++
			if holder.IsZero() || turns[key] >= maxTurns {
				left = append(left, unsettled{id: id, op: "put", err: reason})
				delete(noted, key)
				continue
			}
			if err := l.displace(ctx, c, holder, reason, noted); err != nil {
				return left, err
			}
			ids = append([]bson.RawValue{id}, append(ids, holder)...)
			continue
		default:
			return left, err
		}
		if letter, ok := noted[key]; ok {
			if err := l.letters.Remove(ctx, letter); err != nil {
				return left, fmt.Errorf("remove a dead letter: %w", err)
			}
			delete(noted, key)
		}
	}
	return left, nil
}

// displace removes a document from the destination that holds another's value of a unique index, and notes it.
func (l *Link) displace(ctx context.Context, c CollectionState, holder bson.RawValue, reason error, noted map[string]Letter) error {
	key := canonical(holder)
	if _, ok := noted[key]; !ok {
		letter := l.lettersOf(c, []unsettled{{id: holder, op: "put", err: fmt.Errorf("made room in a unique index: %w", reason)}}, record.Position{})[0]
		if err := l.letters.Add(ctx, []Letter{letter}); err != nil {
			return fmt.Errorf("store a dead letter: %w", err)
		}
		noted[key] = letter
	}
	_, err := l.target.Apply(ctx, l.resolver(), c.Target, []Op{{Verb: Remove, ID: holder}}, false)
	if err != nil {
		return fmt.Errorf("make room in a unique index of %s: %w", c.Target, err)
	}
	return nil
}

// refusalError marks an error as the refusal of one document.
type refusalError struct{ err error }

func (e *refusalError) Error() string { return e.err.Error() }
func (e *refusalError) Unwrap() error { return e.err }

// present writes the present version of one document, or removes it. A refusal is a *refusalError, with the holder of the value if
// there is one.
func (l *Link) present(ctx context.Context, c CollectionState, id bson.RawValue, at record.Timestamp) (holder bson.RawValue, err error) {
	docs, err := l.source.Fetch(ctx, c.Source, c.UUID, []bson.RawValue{id}, l.set.Filter(c.Source), at)
	if errors.Is(err, ErrGone) {
		return bson.RawValue{}, nil // its drop follows
	}
	if err != nil {
		return bson.RawValue{}, fmt.Errorf("read %s: %w", c.Source, err)
	}
	op := Op{Verb: Remove, ID: id}
	if len(docs) > 0 {
		op = Op{Verb: Put, ID: docs[0].Lookup(record.FieldID), Document: docs[0]}
	}
	refused, err := l.target.Apply(ctx, l.resolver(), c.Target, []Op{op}, false)
	if err != nil {
		return bson.RawValue{}, fmt.Errorf("write to %s: %w", c.Target, err)
	}
	if len(refused) > 0 {
		return refused[0].Holder, &refusalError{refused[0].Err}
	}
	return bson.RawValue{}, nil
}

func (l *Link) lettersOf(c CollectionState, dead []unsettled, at record.Position) []Letter {
	letters := make([]Letter, len(dead))
	for i, d := range dead {
		letters[i] = Letter{
			Route: l.route, Source: c.Source, ID: d.id, Reason: d.err.Error(), Op: d.op, Position: at, Time: time.Now(), Attempts: 1,
		}
	}
	return letters
}

// bury stores dead letters, and ends the route when there are too many.
func (l *Link) bury(ctx context.Context, letters []Letter) error {
	if err := l.letters.Add(ctx, letters); err != nil {
		return fmt.Errorf("store dead letters: %w", err)
	}
	n, err := l.letters.Count(ctx, l.route)
	if err != nil {
		return fmt.Errorf("count the dead letters: %w", err)
	}
	l.set1(func() { l.state.Totals.Letters += int64(len(letters)); l.view.letters = n })
	for _, d := range letters {
		l.log.Warn().Str("namespace", d.Source.String()).Str("id", d.ID.String()).Str("reason", d.Reason).Msg("a document is set aside as a dead letter")
		if l.cfg.Hooks.OnLetter != nil {
			l.cfg.Hooks.OnLetter(d)
		}
	}
	if n > int64(max(l.cfg.MaxLetters, 0)) {
		return fmt.Errorf("%w: %d, the last one because: %s", ErrTooManyLetters, n, letters[len(letters)-1].Reason)
	}
	return nil
}
