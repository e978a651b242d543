package workload

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// collectionKinds are operations on collections as such.
func collectionKinds() []kind {
	return []kind{
		{"temporary", 8, (*generator).temporary},
		{"rename", 2, func(g *generator) operation { return g.rename(false) }},
		{"rename-over", 2, func(g *generator) operation { return g.rename(true) }},
		{"drop", 2, func(g *generator) operation {
			tmp := g.tmp()
			drop := command{g.db(), bson.D{{Key: "drop", Value: tmp}}}
			if g.r.IntN(2) == 0 {
				return one(drop)
			}
			return one(drop, g.create(tmp), g.insert(tmp, document(g.r, g.mixedID())))
		}},
		{"create", 1, func(g *generator) operation { return one(g.create(g.tmp())) }},
		{"create-index", 1, (*generator).createIndex},
		{"create-unique-index", 1, func(g *generator) operation {
			return one(g.index(g.tmp(), "uu_1", bson.D{{Key: "uu", Value: 1}}, bson.E{Key: "unique", Value: true}, bson.E{Key: "sparse", Value: true}))
		}},
		{"drop-index", 1, func(g *generator) operation {
			coll := g.indexed()
			return one(command{g.db(), bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: pick(g, "n_1", "sub.x_1", "any_1_n_-1", "*")}}})
		}},
		{"modify", 1, (*generator).modify},
		{"drop-database", 1, (*generator).dropDatabase},
	}
}

// temporary writes to a collection that comes and goes.
func (g *generator) temporary() operation {
	tmp, id := g.tmp(), g.mixedID()
	switch g.r.IntN(5) {
	case 0:
		return one(g.update(tmp, byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: value(g.r, 1)}}}}, false, true))
	case 1:
		return one(g.delete(tmp, byID(id), 1))
	case 2:
		return one(g.insert(tmp, append(document(g.r, id), bson.E{Key: "uu", Value: g.r.IntN(40)})))
	}
	var docs []any
	for range 1 + g.r.IntN(10) {
		docs = append(docs, document(g.r, g.mixedID()))
	}
	return one(g.insert(tmp, docs...))
}

func (g *generator) rename(over bool) operation {
	from := g.r.IntN(temporaries)
	to := (from + 1 + g.r.IntN(temporaries-1)) % temporaries
	return one(command{"admin", bson.D{{Key: "renameCollection", Value: g.db() + "." + fmt.Sprintf(temporary, from)},
		{Key: "to", Value: g.db() + "." + fmt.Sprintf(temporary, to)}, {Key: "dropTarget", Value: over}}})
}

// create makes a collection, some of them with a validator. One that another writer made is refused.
func (g *generator) create(name string) command {
	body := bson.D{{Key: "create", Value: name}}
	if g.r.IntN(3) == 0 {
		body = append(body, bson.E{Key: "validator", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$exists", Value: true}}}}},
			bson.E{Key: "validationAction", Value: "warn"})
	}
	return command{g.db(), body}
}

func (g *generator) indexed() string {
	if g.r.IntN(2) == 0 {
		return g.tmp()
	}
	return fmt.Sprintf(plain, g.r.IntN(plains))
}

func (g *generator) createIndex() operation {
	coll := g.indexed()
	switch g.r.IntN(3) {
	case 0:
		return one(g.index(coll, "n_1", bson.D{{Key: "n", Value: 1}}))
	case 1:
		return one(g.index(coll, "sub.x_1", bson.D{{Key: "sub.x", Value: 1}}, bson.E{Key: "sparse", Value: true}))
	}
	return one(g.index(coll, "any_1_n_-1", bson.D{{Key: "any", Value: 1}, {Key: "n", Value: -1}}))
}

// modify changes a collection's validator, which documents that are there need not fulfil, or hides an index.
func (g *generator) modify() operation {
	coll := g.indexed()
	body := bson.D{{Key: "collMod", Value: coll}}
	switch g.r.IntN(4) {
	case 0:
		body = append(body, bson.E{Key: "index", Value: bson.D{{Key: "name", Value: "n_1"}, {Key: "hidden", Value: g.r.IntN(2) == 0}}})
	case 1:
		body = append(body, bson.E{Key: "validator", Value: bson.D{}})
	default:
		body = append(body, bson.E{Key: "validator", Value: bson.D{{Key: "pad", Value: bson.D{{Key: "$exists", Value: true}}}}},
			bson.E{Key: "validationLevel", Value: pick(g, "strict", "moderate")}, bson.E{Key: "validationAction", Value: pick(g, "error", "warn")})
	}
	return one(command{g.db(), body})
}

// dropDatabase drops the second database, or fills it again.
func (g *generator) dropDatabase() operation {
	db := g.cfg.Prefix + "b"
	fill := command{db, bson.D{{Key: "insert", Value: pick(g, "docs0", "docs1")}, {Key: "documents", Value: bson.A{document(g.r, g.r.IntN(10))}}}}
	if g.r.IntN(2) == 0 {
		return one(fill)
	}
	return one(command{db, bson.D{{Key: "dropDatabase", Value: 1}}}, fill)
}
