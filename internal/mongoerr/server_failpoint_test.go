package mongoerr_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// told makes the server answer the next command of a name as data says, and returns a new client that
// it applies to: a client that was told of a lost primary would first look around.
func (w *world) told(t *testing.T, command string, data ...bson.E) *mongo.Client {
	t.Helper()
	app := fmt.Sprintf("told%d", w.serial.Add(1))
	c := connect(t, w.d.Options().SetAppName(app))
	run(t, w.client, e("configureFailPoint", "failCommand"), e("mode", bson.D{e("times", 1)}),
		e("data", append(bson.D{e("failCommands", bson.A{command}), e("appName", app)}, data...)))
	return c
}

// everyRowByFailPoint makes the server answer with each code of the table, in each form: as the
// failure of an insert before it ran, as its write concern error after it ran, as the failure of a
// find, and of a tail's next batch.
func everyRowByFailPoint(t *testing.T, w *world) {
	tails, _ := w.capped(t)
	for _, r := range mongoerr.Rows() {
		t.Run(fmt.Sprint(r.Code), func(t *testing.T) {
			code := []bson.E{e("errorCode", r.Code)}
			if extra := extraInfo(r.Code); extra != nil {
				code = append(code, e("errorExtraInfo", extra))
			}
			is := func(f form, err error) mongoerr.Class {
				c := mongoerr.Classify(err)
				if c.Code != r.Code {
					t.Fatalf("as %s: got code %d (%T %v)", f, c.Code, err, err)
				}
				agrees(t, r, f, c)
				return c
			}
			c := w.coll()
			as := func(client *mongo.Client) *mongo.Collection {
				return client.Database(c.Database().Name()).Collection(c.Name())
			}

			err := insert(t.Context(), as(w.told(t, "insert", code...)), doc("refused"))
			w.isTrue(t, is(asCommand, err), answer{err, c, []any{"refused"}, 0})

			err = insert(t.Context(), as(w.told(t, "insert", e("writeConcernError", bson.D{e("code", r.Code), e("errmsg", "fail point")}))), doc("applied"))
			w.isTrue(t, is(asConcern, err), answer{err, c, []any{"applied"}, 1})

			_, err = as(w.told(t, "find", code...)).Find(t.Context(), bson.D{})
			is(asRead, err)

			cur := tail(t, w.told(t, "getMore", code...).Database(tails.Database().Name()).Collection(tails.Name()))
			is(asTail, rest(t.Context(), cur))
		})
	}
}

// extraInfo is what the server insists on adding to a code.
func extraInfo(code int) bson.D {
	switch code {
	case 11000:
		return bson.D{e("keyPattern", bson.D{e("_id", 1)}), e("keyValue", bson.D{e("_id", 1)})}
	case 121:
		return bson.D{e("errInfo", bson.D{e("failingDocumentId", 1)})}
	case 361:
		return bson.D{e("db", "table"), e("collectionUUID", bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}), e("expectedCollection", "x"), e("actualCollection", nil)}
	}
	return nil
}

// labelsDecideNothing: whatever labels a server puts on a reply, its class is that of its code, and
// one call remains one command.
func labelsDecideNothing(t *testing.T, w *world) {
	const unknown = 4711
	labels := []string{driver.RetryableWriteError, driver.NoWritesPerformed, driver.TransientTransactionError,
		driver.ErrSystemOverloadedError, driver.ErrRetryableError, driver.NetworkError, "ResumableChangeStreamError"}
	sets := [][]string{{}, labels, {driver.ErrSystemOverloadedError, driver.ErrRetryableError, driver.RetryableWriteError}}
	single := slices.Clone(sets)
	for _, l := range labels {
		single = append(single, []string{l})
	}
	for code, sets := range map[int][][]string{unknown: single, 462: single, 13: single, 50: single, 10107: sets, 11602: sets} {
		plain := mongoerr.Class{}
		for i, set := range sets {
			t.Run(fmt.Sprint(code, strings.Join(set, " ")), func(t *testing.T) {
				c := w.coll()
				sent, err := w.labelled(t, c, code, set)
				got := mongoerr.Classify(err)
				if i == 0 {
					plain = got
				}
				got.Timeout, plain.Timeout = false, false
				if got != plain || got.Code != code {
					t.Errorf("got %+v, without labels %+v", got, plain)
				}
				if sent != 1 {
					t.Errorf("%d commands were sent by one call", sent)
				}
				w.isTrue(t, got, answer{err, c, []any{"a"}, 0})
			})
		}
		if code == unknown && (plain.Write != mongoerr.WriteStop || plain.Untouched) {
			t.Errorf("an unknown code does not stop with an unknown outcome: %+v", plain)
		}
	}
}

// labelled inserts one document and is answered with a code and labels. It returns how many
// commands the call took, and its error.
func (w *world) labelled(t *testing.T, c *mongo.Collection, code int, labels []string) (sent int64, err error) {
	t.Helper()
	app := fmt.Sprintf("labelled%d", w.serial.Add(1))
	var n atomic.Int64
	client := connect(t, w.d.Options().SetAppName(app).SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, ev *event.CommandStartedEvent) {
		if ev.CommandName == "insert" {
			n.Add(1)
		}
	}}))
	run(t, w.client, e("configureFailPoint", "failCommand"), e("mode", bson.D{e("times", 1)}), e("data", bson.D{
		e("failCommands", bson.A{"insert"}), e("appName", app), e("errorCode", code), e("errorLabels", labels),
	}))
	err = insert(t.Context(), client.Database(c.Database().Name()).Collection(c.Name()), doc("a"))
	return n.Load(), err
}
