package workload

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// oid returns an ObjectId that depends on k only.
func oid(k int) bson.ObjectID {
	var id bson.ObjectID
	copy(id[:], "workload")
	binary.BigEndian.PutUint32(id[8:], uint32(k))
	return id
}

// id returns the k-th _id of a collection with _ids of many types. Those of variant 0 and 1 of one k are one _id to the
// server where k is a number, and two byte strings to everybody else.
func id(k, variant int) any {
	switch k % 12 {
	case 0, 1, 2:
		return [...]any{int32(k), float64(k), int64(k)}[(k+variant)%3]
	case 3:
		return fmt.Sprintf("key-%05d", k)
	case 4:
		return bson.D{{Key: "b", Value: int32(k)}, {Key: "a", Value: []any{float64(k % 7), int32(k)}[(variant+1)%2]}}
	case 5:
		return bson.DateTime(1_700_000_000_000 + int64(k)*1000)
	case 6:
		return bson.Binary{Subtype: byte(4 * (k / 12 % 2)), Data: []byte(fmt.Sprintf("binary-%09d", k))[:16]}
	case 7:
		return float64(k) + 0.5
	case 8:
		if k == 8 {
			return nil
		}
		return bson.Timestamp{T: uint32(k), I: 1}
	case 9:
		if k == 9 {
			return true
		}
		return strings.Repeat("ä", k%5) + fmt.Sprint(k)
	}
	return oid(k)
}

// value returns a random value of some type, at most depth levels deep.
func value(r *rand.Rand, depth int) any {
	switch r.IntN(13) {
	case 0:
		return int32(r.IntN(10))
	case 1:
		return r.Int64()
	case 2:
		return float64(r.IntN(10))
	case 3:
		return bson.NewDecimal128(0x3040000000000000, uint64(r.IntN(1000)))
	case 4:
		return nil
	case 5:
		return bson.DateTime(r.Int64N(1 << 41))
	case 6:
		return r.IntN(2) == 0
	case 7:
		return bson.Binary{Subtype: 0, Data: []byte(fmt.Sprint(r.IntN(1000)))}
	case 8:
		return bson.Timestamp{T: uint32(r.IntN(1000) + 1), I: uint32(r.IntN(3))}
	case 9:
		if depth > 0 {
			a := bson.A{}
			for range r.IntN(4) {
				a = append(a, value(r, depth-1))
			}
			return a
		}
	case 10:
		if depth > 0 {
			d := bson.D{}
			for i := range r.IntN(4) {
				d = append(d, bson.E{Key: string(rune('z' - i)), Value: value(r, depth-1)})
			}
			return d
		}
	}
	return strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(12))
}

// document returns a random document with the fields that the updates know.
func document(r *rand.Rand, id any) bson.D {
	d := bson.D{{Key: "_id", Value: id},
		{Key: "n", Value: int32(r.IntN(100))},
		{Key: "sub", Value: bson.D{{Key: "x", Value: value(r, 1)}, {Key: "y", Value: bson.D{{Key: "z", Value: int32(r.IntN(100))}}}}},
		{Key: "arr", Value: numbers(r, r.IntN(8))},
		{Key: "any", Value: value(r, 3)},
		{Key: "pad", Value: strings.Repeat("p", r.IntN(200))}}
	r.Shuffle(len(d)-1, func(i, j int) { d[i+1], d[j+1] = d[j+1], d[i+1] })
	return d[:2+r.IntN(len(d)-1)]
}

func numbers(r *rand.Rand, n int) bson.A {
	a := bson.A{}
	for range n {
		a = append(a, int32(r.IntN(50)))
	}
	return a
}

// long returns an array whose shortening the server reports as a truncation and not as a new array.
func long(r *rand.Rand, n int) bson.A {
	a := bson.A{}
	for range n {
		a = append(a, bson.D{{Key: "i", Value: int32(r.IntN(1000))}, {Key: "s", Value: fmt.Sprintf("element %012d", r.IntN(1_000_000))}})
	}
	return a
}
