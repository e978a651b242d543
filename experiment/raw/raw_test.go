package raw

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// open returns a connection to the package's server and a fresh database with a capped collection "s".
func open(t *testing.T) (*Conn, string) {
	t.Helper()
	d := mongotest.Standalone(t)
	db := d.DB(t).Name()
	c, err := Dial(t.Context(), d.Cluster.Members()[0].Addr, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.CreateCapped(db, "s", 10<<20); err != nil {
		t.Fatal(err)
	}
	return c, db
}

// docs returns documents from..to-1 back to back, each padded to some size.
func docs(from, to, pad int) []byte {
	var b []byte
	for i := from; i < to; i++ {
		b = append(b, bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(i)).
			AppendString("pad", string(bytes.Repeat([]byte("x"), pad))).Build()...)
	}
	return b
}

// read returns the _ids of the next n documents of a cursor.
func read(t *testing.T, cur *Cursor, n int) []int32 {
	t.Helper()
	var ids []int32
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		for doc, ok := cur.Next(); ok; doc, ok = cur.Next() {
			ids = append(ids, doc.Lookup("_id").Int32())
			if len(ids) == n {
				return ids
			}
		}
		if cur.ID() == 0 {
			break
		}
		if err := cur.GetMore(0); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("got %d of %d documents", len(ids), n)
	return nil
}

func sequence(n int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = int32(i)
	}
	return s
}

func TestWhatIsInsertedIsFoundInOrderWhateverTheForm(t *testing.T) {
	t.Parallel()
	c, db := open(t)
	n, err := c.Insert(db, "s", docs(0, 500, 1000)) // more than one batch and than the first buffer
	if err != nil || n != 500 {
		t.Fatalf("Insert = %d, %v", n, err)
	}
	array := bsoncore.BuildDocumentFromElements(nil, bsoncore.AppendDocumentElement(nil, "0", docs(500, 501, 10)))
	if n, err := c.InsertArray(db, "s", array); err != nil || n != 1 {
		t.Fatalf("InsertArray = %d, %v", n, err)
	}
	if n, err := c.Count(db, "s"); err != nil || n != 501 {
		t.Errorf("Count = %d, %v", n, err)
	}
	cur, err := c.Find(db, "s", Query{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sequence(501), read(t, cur, 501)); diff != "" {
		t.Error(diff)
	}
	if _, ok := cur.Next(); ok || cur.ID() != 0 {
		t.Error("there is more than was inserted, or the cursor is not exhausted")
	}
}

func TestATailDeliversWhatComesLater(t *testing.T) {
	t.Parallel()
	c, db := open(t)
	if _, err := c.Insert(db, "s", docs(0, 1, 1)); err != nil {
		t.Fatal(err)
	}
	tail, err := Dial(t.Context(), c.nc.RemoteAddr().String(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tail.Close() }()
	cur, err := tail.Find(db, "s", Query{Tailable: true, BatchSize: 7})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 1; i < 100 && err == nil; i += 9 {
			_, err = c.Insert(db, "s", docs(i, i+9, 1))
		}
		done <- err
	}()
	if diff := cmp.Diff(sequence(100), read(t, cur, 100)); diff != "" {
		t.Error(diff)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := cur.GetMore(time.Millisecond); err != nil {
		t.Fatalf("an await without data: %v", err)
	}
	if _, ok := cur.Next(); ok || cur.ID() == 0 {
		t.Error("a tail at its end is alive and has nothing")
	}
	if err := cur.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestAFilterIsTheServersWork(t *testing.T) {
	t.Parallel()
	c, db := open(t)
	if _, err := c.Insert(db, "s", docs(0, 10, 1)); err != nil {
		t.Fatal(err)
	}
	from := bsoncore.NewDocumentBuilder().AppendInt32("$gte", 8).Build()
	cur, err := c.Find(db, "s", Query{Filter: bson.Raw(bsoncore.NewDocumentBuilder().AppendDocument("_id", from).Build())})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{8, 9}, read(t, cur, 2)); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsOfTheServerAreReturnedWithTheirCode(t *testing.T) {
	t.Parallel()
	c, db := open(t)
	var ce *CommandError
	if _, err := c.Insert(db, "s", append(docs(0, 2, 1), docs(1, 2, 1)...)); !errors.As(err, &ce) || ce.Code != 11000 {
		t.Errorf("insert of a duplicate: %v", err)
	}
	if _, err := c.Run("nonsense", db, bsonInt32(nil, "nonsense", 1), nil); !errors.As(err, &ce) || ce.Code != 59 || ce.Message == "" {
		t.Errorf("unknown command: %v", err)
	}
	if _, err := c.Find(db, "plain", Query{Tailable: true}); err != nil {
		t.Errorf("a tail on a missing collection ends without an error: %v", err)
	}
	if v, err := c.Version(); err != nil || v == "" {
		t.Errorf("Version = %q, %v", v, err)
	}
	if err := c.DropDatabase(db); err != nil {
		t.Errorf("the connection is usable after errors: %v", err)
	}
}

func TestASilentServerEndsTheCallAtItsDeadline(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = Dial(t.Context(), l.Addr().String(), Config{Timeout: 50 * time.Millisecond})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Dial of a silent server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, l.Addr().String(), Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial with a cancelled context: %v", err)
	}
}

// message frames a reply as a server would.
func message(id, opcode int32, kind byte, doc []byte) []byte {
	b := appendInt32(nil, 0)
	b = appendInt32(b, 0)
	b = appendInt32(b, id)
	b = appendInt32(b, opcode)
	b = appendInt32(b, 0)
	b = append(append(b, kind), doc...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func TestRepliesThatAreNotOneAreRefused(t *testing.T) {
	t.Parallel()
	good := document(bsonInt32(nil, "ok", 1))
	for name, msg := range map[string][]byte{
		"another request": message(8, opMsg, sectionBody, good),
		"another opcode":  message(7, 1, sectionBody, good),
		"another section": message(7, opMsg, sectionDocs, good),
		"a cut document":  message(7, opMsg, sectionBody, good[:len(good)-1]),
	} {
		if _, err := body(msg, 7); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if doc, err := body(message(7, opMsg, sectionBody, good), 7); err != nil || !bytes.Equal(doc, good) {
		t.Errorf("a good reply: %v, %v", doc, err)
	}
}

func FuzzEachEndsWithoutAPanicOnAnyBytes(f *testing.F) {
	f.Add([]byte(document(bsonString(bsonInt64(bsonBool(nil, "a", true), "b", 1), "c", "d"))))
	f.Add([]byte{5, 0, 0, 0, 0})
	f.Add([]byte{9, 0, 0, 0, 4, 'a', 0, 3, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		err := Each(b, func(typ bson.Type, _, value []byte) { _, _ = number(typ, value), text(typ, value) })
		_ = fmt.Sprint(err)
		_ = check("fuzz", b)
		_ = (&Cursor{}).take(b)
	})
}
