package stored

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// What the store forgets, a route that is started again does not know: whether a collection is applied in series, for example.
func TestEveryFieldOfAStateComesBack(t *testing.T) {
	t.Parallel()
	var s replicator.State
	number := 0
	fillAll(reflect.ValueOf(&s).Elem(), &number)
	back, err := Of(s).Replicator()
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Options{cmp.AllowUnexported(record.ID{}), cmp.Comparer(func(a, b record.Position) bool { return a == b })}
	if diff := cmp.Diff(s, back, same); diff != "" {
		t.Error(diff)
	}
	b, err := bson.Marshal(Of(s))
	if err != nil {
		t.Fatal(err)
	}
	var again State
	if err := bson.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if back, err = again.Replicator(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, back, same); diff != "" {
		t.Error("through BSON:", diff)
	}
	if b, err = bson.MarshalExtJSON(Of(s), true, false); err != nil {
		t.Fatal(err)
	}
	var read State
	if err := bson.UnmarshalExtJSON(b, true, &read); err != nil {
		t.Fatal(err)
	}
	if back, err = read.Replicator(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, back, same); diff != "" {
		t.Error("through Extended JSON:", diff)
	}
}

// fillAll makes every field something else than zero, and each list one element long.
func fillAll(v reflect.Value, number *int) {
	*number++
	switch v.Interface().(type) {
	case record.ID:
		v.Set(reflect.ValueOf(record.NewID()))
		return
	case record.Position:
		v.Set(reflect.ValueOf(record.Position{TS: record.Timestamp{T: uint32(*number), I: 1}, ID: record.NewID()}))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMilli(1_700_000_000_000).UTC()))
		return
	case bson.Raw:
		v.Set(reflect.ValueOf(bson.Raw{5, 0, 0, 0, 0}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillAll(v.Field(i), number)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillAll(v.Index(0), number)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*number))
	case reflect.Uint32:
		v.SetUint(uint64(*number))
	default:
		panic("a kind of field that this test does not know: " + v.Kind().String())
	}
}
