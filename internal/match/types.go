package match

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// aliases are the names of types in $type.
var aliases = map[string]bson.Type{
	"double": bson.TypeDouble, "string": bson.TypeString, "object": bson.TypeEmbeddedDocument, "array": bson.TypeArray,
	"binData": bson.TypeBinary, "undefined": bson.TypeUndefined, "objectId": bson.TypeObjectID, "bool": bson.TypeBoolean,
	"date": bson.TypeDateTime, "null": bson.TypeNull, "regex": bson.TypeRegex, "dbPointer": bson.TypeDBPointer,
	"javascript": bson.TypeJavaScript, "symbol": bson.TypeSymbol, "javascriptWithScope": bson.TypeCodeWithScope,
	"int": bson.TypeInt32, "timestamp": bson.TypeTimestamp, "long": bson.TypeInt64, "decimal": bson.TypeDecimal128,
	"minKey": bson.TypeMinKey, "maxKey": bson.TypeMaxKey,
}

var numbers = []bson.Type{bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128}

// compileType takes a type's name or number, "number" for all numbers, or an array of these.
func compileType(v bson.RawValue) (predicate, error) {
	want := []bson.RawValue{v}
	if arr, ok := v.ArrayOK(); ok {
		var err error
		if want, err = arr.Values(); err != nil {
			return nil, err
		}
		if len(want) == 0 {
			return nil, fmt.Errorf("$type needs at least one type")
		}
	}
	types := map[bson.Type]bool{}
	for _, w := range want {
		ts, err := typesOf(w)
		if err != nil {
			return nil, err
		}
		for _, t := range ts {
			types[t] = true
		}
	}
	return value{true, func(v bson.RawValue) bool { return types[v.Type] }}, nil
}

func typesOf(v bson.RawValue) ([]bson.Type, error) {
	if name, ok := v.StringValueOK(); ok {
		if name == "number" {
			return numbers, nil
		}
		if t, ok := aliases[name]; ok {
			return []bson.Type{t}, nil
		}
		return nil, fmt.Errorf("$type: unknown type %q", name)
	}
	n, ok := wholeNumber(v)
	for _, t := range aliases {
		if ok && (int64(t) == n || n == -1 && t == bson.TypeMinKey) {
			return []bson.Type{t}, nil
		}
	}
	return nil, fmt.Errorf("$type: unknown type %s", v)
}
