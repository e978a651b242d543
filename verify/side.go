package verify

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

// The names of the sides, in errors, logs and reports.
const (
	sourceName = "source"
	targetName = "target"
)

// closeTimeout bounds the closing of connections when all is over.
const closeTimeout = 2 * time.Second

// side is one of the deployments. It only reads, every command has a deadline, and a command that fails in a way that
// passes (an election, a cut, a freeze) is sent again. There are no cursors that live longer than a command, except
// where natural order asks for one: a window is one command, so whichever member answers, and however often, it is the
// same question. Safe for concurrent use.
type side struct {
	name   string
	opts   *options.ClientOptions
	pref   *readpref.ReadPref
	cfg    Config
	client *mongo.Client // set by connect
}

func newSide(name string, opts *options.ClientOptions, cfg Config) *side {
	return &side{name: name, opts: opts, cfg: cfg}
}

// connect makes the client. close ends it.
func (s *side) connect() error {
	o := options.MergeClientOptions(s.opts)
	o.Timeout = nil // every command has a deadline of its own
	if t := o.ServerSelectionTimeout; t == nil || *t <= 0 || *t > s.cfg.AttemptTimeout {
		o.SetServerSelectionTimeout(s.cfg.AttemptTimeout)
	}
	if t := o.ConnectTimeout; t == nil || *t <= 0 || *t > s.cfg.AttemptTimeout {
		o.SetConnectTimeout(s.cfg.AttemptTimeout)
	}
	s.pref = readpref.Primary()
	if o.ReadPreference != nil {
		s.pref = o.ReadPreference
	}
	client, err := mongo.Connect(o)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.client = client
	return nil
}

func (s *side) close(ctx context.Context) {
	if s.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = s.client.Disconnect(ctx) // nothing is in progress
}

// again calls do, which reads, until it succeeds, fails for good, or the side has not answered for Patience. do gets a
// context with a deadline and how many attempts have failed.
func (s *side) again(ctx context.Context, what string, do func(ctx context.Context, failed int) error) error {
	loop := retry.New(retry.Policy{})
	begin := time.Now()
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, s.cfg.AttemptTimeout)
			defer cancel()
			return do(ctx, loop.Attempts())
		}()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mongoerr.Classify(err).Read != mongoerr.ReadRetry:
			return fmt.Errorf("%s: %s: %w", s.name, what, err)
		case time.Since(begin) >= s.cfg.Patience:
			return fmt.Errorf("%s: %s: no answer for %s (%d attempts); start the comparison again when the deployment is back: %w",
				s.name, what, time.Since(begin).Round(time.Second), loop.Attempts()+1, err)
		}
		if f := s.cfg.Hooks.OnRetry; f != nil {
			f(s.name, err)
		}
		s.cfg.Logger.Debug().Str("side", s.name).Str("command", what).Err(err).Msg("a read is tried again")
		if err := loop.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// run sends one command that reads until it is answered. The answer belongs to the caller.
func (s *side) run(ctx context.Context, ns record.Namespace, cmd bson.D) (bson.Raw, error) {
	return s.runSmaller(ctx, ns, func(int) bson.D { return cmd })
}

// runSmaller is run for a command that asks for less after failed attempts: a deadline may have been too short.
func (s *side) runSmaller(ctx context.Context, ns record.Namespace, command func(failed int) bson.D) (bson.Raw, error) {
	var raw bson.Raw
	err := s.again(ctx, "read "+ns.String(), func(ctx context.Context, failed int) error {
		var err error
		raw, err = s.once(ctx, ns.DB, command(failed))
		return err
	})
	return raw, err
}

func (s *side) once(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	return s.client.Database(db).RunCommand(ctx, cmd, options.RunCmd().SetReadPreference(s.pref)).Raw()
}

// limited adds what every read carries: committed data only. The driver adds what is left of the attempt's time, so that a read
// that was cut off here does not go on there.
func (s *side) limited(cmd bson.D) bson.D {
	return append(cmd, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}})
}

// reply is the first batch of a find. Its documents are parts of the reply: nothing is copied.
type reply struct {
	docs   []bson.Raw
	bytes  int
	batch  []byte // the documents as sent, to be compared as a whole
	cursor int64  // 0: there is no more
}

func parseReply(raw bson.Raw, hint int) (reply, error) {
	var r reply
	cursor, ok := raw.Lookup("cursor").DocumentOK()
	if !ok {
		return r, fmt.Errorf("%w: the reply has no cursor", record.ErrMalformed)
	}
	r.cursor, _ = cursor.Lookup("id").AsInt64OK()
	batch, ok := cursor.Lookup("firstBatch").ArrayOK()
	if !ok {
		if batch, ok = cursor.Lookup("nextBatch").ArrayOK(); !ok {
			return r, fmt.Errorf("%w: the reply has no batch", record.ErrMalformed)
		}
	}
	r.batch = batch
	r.docs = make([]bson.Raw, 0, min(hint, len(batch)/8+1))
	err := eachDocument(batch, func(doc bson.Raw) { r.docs = append(r.docs, doc) })
	r.bytes = len(batch)
	return r, err
}

// eachDocument calls visit for the documents of an array. It only follows their lengths.
func eachDocument(array []byte, visit func(bson.Raw)) error {
	rest, ok := body(array)
	if !ok {
		return fmt.Errorf("%w: a batch's length is wrong", record.ErrMalformed)
	}
	for len(rest) > 0 {
		if bson.Type(rest[0]) != bson.TypeEmbeddedDocument {
			return fmt.Errorf("%w: a batch holds something that is no document", record.ErrMalformed)
		}
		i := 1
		for i < len(rest) && rest[i] != 0 { // the index, as text
			i++
		}
		if i++; i+4 > len(rest) {
			return fmt.Errorf("%w: a batch ends too early", record.ErrMalformed)
		}
		n := int(int32At(rest[i:]))
		if n < 5 || i+n > len(rest) {
			return fmt.Errorf("%w: a document does not fit its batch", record.ErrMalformed)
		}
		visit(bson.Raw(rest[i : i+n : i+n]))
		rest = rest[i+n:]
	}
	return nil
}

// body returns the elements of a document or array, without its length and its end.
func body(doc []byte) ([]byte, bool) {
	if len(doc) < 5 || int(int32At(doc)) != len(doc) || doc[len(doc)-1] != 0 {
		return nil, false
	}
	return doc[4 : len(doc)-1], true
}

func int32At(b []byte) int32 {
	return int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}

// kill closes a cursor that is not needed any more. That it fails matters to nobody: the server closes it by itself.
func (s *side) kill(ctx context.Context, ns record.Namespace, cursor int64) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	_, _ = s.once(ctx, ns.DB, bson.D{{Key: "killCursors", Value: ns.Coll}, {Key: "cursors", Value: bson.A{cursor}}})
}
