package workload

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// documentKinds are operations on the documents of plain collections and of mixed.
func documentKinds() []kind {
	return []kind{
		{"insert", 14, func(g *generator) operation {
			coll, id := g.target()
			if g.r.IntN(2) == 0 {
				return one(g.insert(fmt.Sprintf(plain, g.r.IntN(plains)), document(g.r, int32(g.writer*1_000_000+g.n)))) // surely new
			}
			return one(g.insert(coll, document(g.r, id)))
		}},
		{"insert-many", 2, (*generator).insertMany},
		{"set", 12, (*generator).set},
		{"unset", 5, func(g *generator) operation {
			return g.change("$unset", bson.D{{Key: pick(g, "n", "sub.x", "sub.y.z", "arr.0", "any", "sub"), Value: 1}})
		}},
		{"inc", 6, func(g *generator) operation {
			return g.change("$inc", bson.D{{Key: pick(g, "n", "sub.y.z", "arr.1"), Value: pick[any](g, int32(1), int64(5), 0.5)}})
		}},
		{"push", 5, (*generator).push},
		{"array-set", 5, func(g *generator) operation {
			return g.change("$set", bson.D{{Key: fmt.Sprintf("arr.%d", g.r.IntN(5)), Value: value(g.r, 2)}})
		}},
		{"past-the-end", 2, func(g *generator) operation {
			return g.change("$set", bson.D{{Key: fmt.Sprintf("arr.%d", 6+g.r.IntN(8)), Value: value(g.r, 1)}})
		}},
		{"rename-field", 3, func(g *generator) operation {
			return g.change("$rename", bson.D{{Key: pick(g, "n", "any", "sub.x"), Value: pick(g, "moved", "sub.moved", "pad")}})
		}},
		{"pipeline", 5, (*generator).pipeline},
		{"replace", 8, func(g *generator) operation {
			coll, id := g.target()
			d := document(g.r, id)
			return one(g.update(coll, byID(id), d, false, g.r.IntN(2) == 0))
		}},
		{"type-only", 4, (*generator).typeOnly},
		{"delete", 8, func(g *generator) operation {
			coll, id := g.target()
			return one(g.delete(coll, byID(id), 1))
		}},
		{"delete-many", 1, func(g *generator) operation {
			return one(g.delete(fmt.Sprintf(plain, g.r.IntN(plains)), bson.D{{Key: "n", Value: g.r.IntN(100)}}, 0))
		}},
		{"update-many", 1, func(g *generator) operation {
			return one(g.update(fmt.Sprintf(plain, g.r.IntN(plains)), bson.D{{Key: "n", Value: g.r.IntN(100)}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "many", Value: g.r.IntN(1000)}}}}, true, false))
		}},
		{"same-id", 4, (*generator).sameID},
		{"odd-names", 2, (*generator).oddNames},
	}
}

func one(c ...command) operation { return operation{commands: c} }

func pick[T any](g *generator, of ...T) T { return of[g.r.IntN(len(of))] }

func (g *generator) change(operator string, change bson.D) operation {
	coll, id := g.target()
	return one(g.update(coll, byID(id), bson.D{{Key: operator, Value: change}}, false, g.r.IntN(4) == 0))
}

func (g *generator) insertMany() operation {
	var docs []any
	for range 20 + g.r.IntN(200) {
		docs = append(docs, document(g.r, g.plainID()))
	}
	return one(g.insert(fmt.Sprintf(plain, g.r.IntN(plains)), docs...))
}

func (g *generator) set() operation {
	d := bson.D{{Key: pick(g, "n", "sub.x", "sub.y.z", "sub.new.deep.er", "any", "pad"), Value: value(g.r, 2)}}
	if g.r.IntN(3) == 0 {
		d = append(d, bson.E{Key: "also", Value: value(g.r, 1)})
	}
	return g.change("$set", d)
}

func (g *generator) push() operation {
	switch g.r.IntN(4) {
	case 0:
		return g.change("$pop", bson.D{{Key: "arr", Value: pick(g, 1, -1)}})
	case 1:
		return g.change("$pull", bson.D{{Key: "arr", Value: bson.D{{Key: "$lt", Value: g.r.IntN(50)}}}})
	case 2:
		return g.change("$push", bson.D{{Key: "arr", Value: bson.D{{Key: "$each", Value: numbers(g.r, 1+g.r.IntN(3))},
			{Key: "$slice", Value: -6}, {Key: "$position", Value: g.r.IntN(3)}}}})
	}
	return g.change("$push", bson.D{{Key: "arr", Value: value(g.r, 2)}})
}

func (g *generator) pipeline() operation {
	coll, id := g.target()
	var stage bson.D
	switch g.r.IntN(4) {
	case 0:
		stage = bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: g.r.IntN(100)}, {Key: "sub.y.z", Value: "$n"}}}}
	case 1:
		stage = bson.D{{Key: "$unset", Value: bson.A{"any", "sub.x"}}}
	case 2:
		stage = bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{
			bson.D{{Key: "_id", Value: "$_id"}, {Key: "was", Value: "$sub"}}, bson.D{{Key: "n", Value: g.r.IntN(100)}}}}}}}
	default:
		stage = bson.D{{Key: "$set", Value: bson.D{{Key: "arr", Value: bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$isArray", Value: "$arr"}},
			bson.D{{Key: "$slice", Value: bson.A{bson.D{{Key: "$concatArrays", Value: bson.A{"$arr", numbers(g.r, 2)}}}, 1 + g.r.IntN(6)}}}, bson.A{1, 2}}}}}}}}
	}
	return one(g.update(coll, byID(id), bson.A{stage}, false, false))
}

// typeOnly changes the type of a value or the order of fields and nothing else that compares.
func (g *generator) typeOnly() operation {
	coll, id := g.target()
	switch g.r.IntN(3) {
	case 0:
		return one(g.update(coll, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "five", Value: pick[any](g, int32(5), int64(5), 5.0, bson.NewDecimal128(0x3040000000000000, 5))}}}}, false, false))
	case 1:
		sub := bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}
		if g.r.IntN(2) == 0 {
			sub[0], sub[1] = sub[1], sub[0]
		}
		return one(g.update(coll, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "order", Value: sub}}}}, false, false))
	}
	d := bson.D{{Key: "_id", Value: id}, {Key: "p", Value: 1}, {Key: "q", Value: 2}, {Key: "r", Value: bson.NewDecimal128(0x303e000000000000, 10)}}
	g.r.Shuffle(3, func(i, j int) { d[i+1], d[j+1] = d[j+1], d[i+1] })
	return one(g.update(coll, byID(id), d, false, true))
}

// sameID deletes a document and inserts one whose _id is the same to the server and other bytes: 7 and 7.0.
func (g *generator) sameID() operation {
	k, variant := 12*g.r.IntN(pool/12)+g.r.IntN(5), g.r.IntN(2)
	return one(g.delete(mixed, byID(id(k, variant)), 1), g.insert(mixed, document(g.r, id(k, 1-variant))))
}

// oddNames writes fields whose names look like paths and operators.
func (g *generator) oddNames() operation {
	coll, id := g.target()
	switch g.r.IntN(3) {
	case 0:
		return one(g.update(coll, byID(id), bson.D{{Key: "_id", Value: id}, {Key: "a.b", Value: value(g.r, 1)}, {Key: "", Value: 1},
			{Key: "sub", Value: bson.D{{Key: "$inc", Value: 1}, {Key: "0", Value: 2}, {Key: "x.y", Value: 3}}}}, false, true))
	case 1:
		return one(g.update(coll, byID(id), bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$setField", Value: bson.D{
			{Key: "field", Value: "a.b"}, {Key: "input", Value: "$$ROOT"}, {Key: "value", Value: g.r.IntN(100)}}}}}}}, false, false))
	}
	return one(g.update(coll, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "sub.0", Value: value(g.r, 1)}, {Key: "sub.x", Value: g.r.IntN(10)}}}}, false, false))
}
