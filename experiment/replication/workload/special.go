package workload

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// specialKinds are operations on the collections that are hard to replicate.
func specialKinds() []kind {
	return []kind{
		{"transaction", 4, (*generator).transaction},
		{"large-transaction", 1, (*generator).largeTransaction},
		{"truncate", 6, (*generator).truncate},
		{"array-element", 4, (*generator).arrayElement},
		{"extend", 4, (*generator).extend},
		{"unique-move", 5, (*generator).uniqueMove},
		{"unique-swap", 4, (*generator).uniqueSwap},
		{"unique-set", 3, func(g *generator) operation {
			return one(g.update(unique, byID(int32(g.r.IntN(uniquePool))),
				bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: uniqueValue(g.r.IntN(uniquePool))}}}}, false, g.r.IntN(3) == 0))
		}},
		{"capped", 6, func(g *generator) operation {
			var docs []any
			for i := range 1 + g.r.IntN(30) {
				docs = append(docs, g.cappedDocument(g.n*100+i))
			}
			o := one(g.insert(fmt.Sprintf(capped, g.writer), docs...))
			o.commands[0].body[2].Value = true // in order
			return o
		}},
		{"collation", 3, (*generator).folded},
	}
}

func uniqueValue(k int) string { return fmt.Sprintf("value-%03d", k) }

func (g *generator) uniqueDocument(k, u int) bson.D {
	d := bson.D{{Key: "_id", Value: int32(k)}, {Key: "u", Value: uniqueValue(u)}, {Key: "n", Value: g.r.IntN(1000)}}
	if g.r.IntN(2) == 0 {
		d = append(d, bson.E{Key: "a", Value: int32(u)}, bson.E{Key: "b", Value: "b"})
	}
	return d
}

// cappedDocument never repeats an _id: an evicted one that comes again would be another document.
func (g *generator) cappedDocument(i int) bson.D {
	return bson.D{{Key: "_id", Value: fmt.Sprintf("%d-%07d", g.writer, i)}, {Key: "n", Value: g.r.IntN(1000)}, {Key: "pad", Value: value(g.r, 1)}}
}

func (g *generator) transaction() operation {
	var cmds []command
	for range 2 + g.r.IntN(5) {
		coll, id := g.target()
		switch g.r.IntN(4) {
		case 0:
			cmds = append(cmds, in(g.update(coll, byID(id), document(g.r, id), false, true)))
		case 1:
			cmds = append(cmds, in(g.delete(coll, byID(id), 1)))
		case 2:
			cmds = append(cmds, in(g.update(coll, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "tx", Value: g.n}}}}, false, true)))
		default:
			cmds = append(cmds, in(g.update(arrays, byID(int32(g.r.IntN(arrayPool))), bson.D{{Key: "$set", Value: bson.D{{Key: "tx", Value: g.n}}}}, false, false)))
		}
	}
	return operation{tx: true, commands: cmds}
}

// largeTransaction has so many operations that the source's oplog needs several entries for it, at times.
func (g *generator) largeTransaction() operation {
	var updates bson.A
	coll := fmt.Sprintf(plain, g.r.IntN(plains))
	for range 300 {
		id := g.plainID()
		updates = append(updates, bson.D{{Key: "q", Value: byID(id)}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "large", Value: g.n}}}}}, {Key: "upsert", Value: true}})
	}
	c := command{g.db(), bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: updates}}}
	return operation{tx: true, commands: []command{c, in(g.delete(coll, byID(g.plainID()), 1))}}
}

// guarded is a pipeline that changes arr where it is an array.
func guarded(expr any, more ...bson.E) bson.A {
	set := append(bson.D{{Key: "arr", Value: bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$isArray", Value: "$arr"}}, expr, "$arr"}}}}}, more...)
	return bson.A{bson.D{{Key: "$set", Value: set}}}
}

func (g *generator) truncate() operation {
	id := byID(int32(g.r.IntN(arrayPool)))
	n := 1 + g.r.IntN(200)
	switch g.r.IntN(5) {
	case 0:
		return one(g.update(arrays, id, guarded(bson.D{{Key: "$slice", Value: bson.A{"$arr", n}}}, bson.E{Key: "cut", Value: n}), false, false))
	case 1: // classic operators send the whole array
		return one(g.update(arrays, id, bson.D{{Key: "$push", Value: bson.D{{Key: "arr", Value: bson.D{{Key: "$each", Value: bson.A{}}, {Key: "$slice", Value: n}}}}}}, false, false))
	case 2: // cut, and an element set in the same event
		return one(g.update(arrays, id, guarded(bson.D{{Key: "$concatArrays", Value: bson.A{bson.D{{Key: "$slice", Value: bson.A{"$arr", n}}}, long(g.r, 1)}}}), false, false))
	}
	return one(g.update(arrays, id, guarded(bson.D{{Key: "$slice", Value: bson.A{"$arr", n}}}), false, false))
}

func (g *generator) arrayElement() operation {
	id, at := byID(int32(g.r.IntN(arrayPool))), g.r.IntN(300)
	path := fmt.Sprintf("arr.%d", at)
	switch g.r.IntN(4) {
	case 0:
		return one(g.update(arrays, id, bson.D{{Key: "$unset", Value: bson.D{{Key: path, Value: 1}}}}, false, false))
	case 1:
		return one(g.update(arrays, id, bson.D{{Key: "$pop", Value: bson.D{{Key: "arr", Value: 1}}}}, false, false))
	case 2:
		return one(g.update(arrays, id, bson.D{{Key: "$set", Value: bson.D{{Key: path + ".s", Value: value(g.r, 1)}, {Key: "keep", Value: g.n}}}}, false, false))
	}
	return one(g.update(arrays, id, bson.D{{Key: "$set", Value: bson.D{{Key: path, Value: value(g.r, 2)}}}}, false, false))
}

// extend makes arrays long again, so that there is something to cut.
func (g *generator) extend() operation {
	k := int32(g.r.IntN(arrayPool))
	if g.r.IntN(3) == 0 {
		return one(g.update(arrays, byID(k), bson.D{{Key: "_id", Value: k}, {Key: "keep", Value: "value"}, {Key: "arr", Value: long(g.r, 250)}}, false, true))
	}
	return one(g.update(arrays, byID(k), bson.D{{Key: "$push", Value: bson.D{{Key: "arr", Value: bson.D{{Key: "$each", Value: long(g.r, 100)}, {Key: "$slice", Value: 400}}}}}}, false, false))
}

// uniqueMove gives the unique value of one document to another: delete and insert, in a transaction or not.
func (g *generator) uniqueMove() operation {
	a, b, u := g.r.IntN(uniquePool), g.r.IntN(uniquePool), g.r.IntN(uniquePool)
	del, ins := g.delete(unique, bson.D{{Key: "$or", Value: bson.A{byID(int32(a)), byID(int32(b)), bson.D{{Key: "u", Value: uniqueValue(u)}}}}}, 0), g.insert(unique, g.uniqueDocument(b, u))
	if g.r.IntN(3) == 0 {
		return operation{tx: true, commands: []command{in(del), in(ins)}}
	}
	return one(del, ins)
}

// uniqueSwap exchanges the unique values of two documents by way of a third.
func (g *generator) uniqueSwap() operation {
	a, b, u, v := int32(g.r.IntN(uniquePool)), int32(g.r.IntN(uniquePool)), g.r.IntN(uniquePool), g.r.IntN(uniquePool)
	set := func(id int32, u string) command {
		return g.update(unique, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: u}}}}, false, true)
	}
	cmds := []command{
		g.update(unique, bson.D{{Key: "u", Value: uniqueValue(u)}}, bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: fmt.Sprintf("free-%d-%d", g.writer, g.n)}}}}, false, false),
		set(a, uniqueValue(u)), set(b, uniqueValue(v)), set(a, uniqueValue(v)), set(b, uniqueValue(u)),
	}
	if g.r.IntN(3) == 0 {
		for i := range cmds {
			cmds[i] = in(cmds[i])
		}
		return operation{tx: true, commands: cmds[:2]}
	}
	return one(cmds...)
}

// folded works on _ids that are equal to the server although their letters are not.
func (g *generator) folded() operation {
	key := func() string { return pick(g, "key", "KEY", "Key") + fmt.Sprint(g.r.IntN(12)) }
	a := key()
	switch g.r.IntN(4) {
	case 0:
		return one(g.delete(collation, byID(a), 1), g.insert(collation, bson.D{{Key: "_id", Value: key()}, {Key: "n", Value: g.n}}))
	case 1:
		return one(g.update(collation, byID(a), bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: g.n}}}}, false, false))
	case 2:
		return one(g.insert(collation, bson.D{{Key: "_id", Value: a}, {Key: "n", Value: g.n}}))
	}
	return one(g.delete(collation, byID(a), 1), g.insert(collation, bson.D{{Key: "_id", Value: pick(g, a, key())}, {Key: "again", Value: g.n}}))
}
