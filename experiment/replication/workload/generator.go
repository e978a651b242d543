package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The collections. The first database has all of them, the second docs0 and what is dropped with it.
const (
	mixed     = "mixed"    // _ids of every type
	unique    = "uniq"     // a unique index, and one on two fields
	arrays    = "arrays"   // long arrays
	capped    = "capped%d" // one per writer: with several, natural order and the oplog's are two orders
	collation = "folded"   // a collation that makes "a" and "A" one _id
	plain     = "docs%d"   // plains of them, _ids are int32
	temporary = "tmp%d"    // temporaries of them, which come and go
	view      = "view"

	plains, temporaries = 3, 4
	// pool is how many _ids a small collection draws from: few, so that writers meet.
	pool       = 150
	uniquePool = 60
	arrayPool  = 20
	cappedMax  = 120
)

// generator makes the operations of one writer. Not safe for concurrent use.
type generator struct {
	cfg    Config
	r      *rand.Rand
	writer int
	n      int // operations made
	total  int // of the weights
	kinds  []kind
}

// kind is a kind of operation and how often it comes.
type kind struct {
	name   string
	weight int
	make   func(g *generator) operation
}

// Kinds returns the names of all kinds of operations.
func Kinds() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

func kinds() []kind { return slices.Concat(documentKinds(), specialKinds(), collectionKinds()) }

func newGenerator(cfg Config, writer int) *generator {
	g := &generator{cfg: cfg, writer: writer, r: rand.New(rand.NewPCG(cfg.Seed, uint64(writer)))}
	for _, k := range kinds() {
		if !slices.Contains(cfg.Without, k.name) {
			g.kinds = append(g.kinds, k)
			g.total += k.weight
		}
	}
	return g
}

// next returns the next operation. What it is depends on the seed, the writer and how many there were.
func (g *generator) next() operation {
	g.n++
	at := g.r.IntN(g.total)
	for _, k := range g.kinds {
		if at -= k.weight; at < 0 {
			o := k.make(g)
			o.kind = k.name
			return o
		}
	}
	panic("the weights are more than their sum") // cannot be
}

func (g *generator) has(name string) bool { return !slices.Contains(g.cfg.Without, name) }

func (g *generator) db() string { return g.cfg.Prefix + "a" }

// concern is what a write waits for: some wait for the majority, others are what an election may take back.
func (g *generator) concern() bson.E {
	if g.r.IntN(3) == 0 {
		return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}
	}
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

func (g *generator) insert(coll string, docs ...any) command {
	return command{g.db(), bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A(docs)}, {Key: "ordered", Value: false}, g.concern()}}
}

func (g *generator) update(coll string, filter, change any, multi, upsert bool) command {
	return command{g.db(), bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter},
		{Key: "u", Value: change}, {Key: "multi", Value: multi}, {Key: "upsert", Value: upsert}}}}, g.concern()}}
}

func (g *generator) delete(coll string, filter any, limit int) command {
	return command{g.db(), bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: filter},
		{Key: "limit", Value: limit}}}}, g.concern()}}
}

// in returns c as a part of a transaction, which has the write concern, with the commit.
func in(c command) command {
	c.body = slices.DeleteFunc(slices.Clone(c.body), func(e bson.E) bool { return e.Key == "writeConcern" || e.Key == "ordered" })
	return c
}

func byID(id any) bson.D { return bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}} }

// target is a collection of documents with the fields of document, and one of its _ids.
func (g *generator) target() (coll string, id any) {
	if g.r.IntN(3) == 0 {
		return mixed, g.mixedID()
	}
	return fmt.Sprintf(plain, g.r.IntN(plains)), g.plainID()
}

// plainID returns an _id of a plain collection: three of four are there in the beginning.
func (g *generator) plainID() int32 { return int32(g.r.IntN(g.perPlain() * 4 / 3)) }

func (g *generator) mixedID() any { return id(g.r.IntN(pool), g.r.IntN(2)) }

func (g *generator) perPlain() int { return max(50, g.cfg.Documents/plains) }

func (g *generator) tmp() string { return fmt.Sprintf(temporary, g.r.IntN(temporaries)) }

// prepare returns what makes the collections and their first documents.
func (g *generator) prepare() []operation {
	one := func(c ...command) operation { return operation{kind: "prepare", commands: c} }
	create := func(name string, options ...bson.E) operation {
		return one(command{g.db(), append(bson.D{{Key: "create", Value: name}}, options...)})
	}
	ops := []operation{
		create(mixed), create(unique), create(arrays),
		create(view, bson.E{Key: "viewOn", Value: mixed}, bson.E{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: 1}}}}}}),
		one(g.index(unique, "u_1", bson.D{{Key: "u", Value: 1}}, bson.E{Key: "unique", Value: true})),
		one(g.index(unique, "a_1_b_1", bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, bson.E{Key: "unique", Value: true}, bson.E{Key: "sparse", Value: true})),
	}
	if g.has("capped") {
		for w := range g.cfg.Writers {
			name := fmt.Sprintf(capped, w+1)
			ops = append(ops, create(name, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 1 << 20}, bson.E{Key: "max", Value: cappedMax}))
			ops = append(ops, g.fill(name, cappedMax*5/4, func(k int) any { return g.cappedDocument(k) })...)
		}
	}
	if g.has("collation") {
		ops = append(ops, create(collation, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}))
	}
	for p := range plains {
		ops = append(ops, g.fill(fmt.Sprintf(plain, p), g.perPlain(), func(k int) any { return document(g.r, int32(k)) })...)
	}
	ops = append(ops, g.fill(mixed, pool, func(k int) any { return document(g.r, id(k, 0)) })...)
	ops = append(ops, g.fill(unique, uniquePool, func(k int) any { return g.uniqueDocument(k, k) })...)
	ops = append(ops, g.fill(arrays, arrayPool, func(k int) any {
		return bson.D{{Key: "_id", Value: int32(k)}, {Key: "keep", Value: "value"}, {Key: "arr", Value: long(g.r, 150+g.r.IntN(200))}}
	})...)
	return append(ops, operation{kind: "prepare", commands: []command{{g.cfg.Prefix + "b",
		bson.D{{Key: "insert", Value: "docs0"}, {Key: "documents", Value: bson.A{document(g.r, 1)}}}}}})
}

// fill returns what inserts n documents, 500 at a time.
func (g *generator) fill(coll string, n int, doc func(k int) any) []operation {
	var ops []operation
	for from := 0; from < n; from += 500 {
		var docs []any
		for k := from; k < min(n, from+500); k++ {
			docs = append(docs, doc(k))
		}
		ops = append(ops, operation{kind: "prepare", commands: []command{g.insert(coll, docs...)}})
	}
	return ops
}

func (g *generator) index(coll, name string, keys bson.D, options ...bson.E) command {
	spec := append(bson.D{{Key: "key", Value: keys}, {Key: "name", Value: name}}, options...)
	return command{g.db(), bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{spec}}}}
}
