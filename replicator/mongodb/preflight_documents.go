package mongodb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// wholeDocuments and wholeBytes: a collection with less is looked at as a whole.
	wholeDocuments = 20_000
	wholeBytes     = 128 << 20
	// sampleDocuments is how many documents of a larger one are looked at, fewer if that takes too long.
	sampleDocuments = 1000
	// nearLimit is the size from which a document counts as near the limit of 16 MB.
	nearLimit = 12 << 20
)

// documents looks at the documents of c, or at a sample: their _ids' types, their sizes, and their fields' names. The server works it
// out, so that no document travels.
func (p *preflight) documents(ctx context.Context, c replicator.Collection) error {
	whole := c.Documents <= wholeDocuments && c.Bytes <= wholeBytes
	var found bson.Raw
	err := p.src.read(ctx, c.Name.DB, c.Name.String(), func(ctx context.Context, try int, d *mongo.Database) error {
		size := sampleDocuments
		for range min(try, 3) {
			size /= 4
			whole = false
		}
		docs, _, err := firstBatch(ctx, d, p.src.pref, bson.D{{Key: "aggregate", Value: c.Name.Coll}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: survey(whole, size)}}, 0)
		if tooMuch(err) && try >= 3 {
			return errTooSlow
		}
		if len(docs) == 1 {
			found = docs[0]
		}
		return err
	})
	switch {
	case errors.Is(err, errTooSlow):
		p.add(SeverityNote, CodeLargeDocuments, c.Name, "", "the server could not take a sample in time: sizes, types of _id and names of fields are not known")
		return nil
	case mongoerr.IsUnauthorized(err):
		p.add(SeverityBlocker, CodePermission, c.Name, "grant the source's user the role read on the database "+c.Name.DB, "the collection may not be read")
		return nil
	case err != nil:
		return err
	case found == nil:
		return nil
	}
	p.judge(c, found, whole)
	return p.idTypes(ctx, c, found)
}

// idTypes looks at the first and the last _id: an index is in the order of types, so if those two have one type, all have. Which ones
// are in between, a survey knows as far as it has seen them.
func (p *preflight) idTypes(ctx context.Context, c replicator.Collection, found bson.Raw) error {
	types := distinctTypes(found.Lookup("types"))
	for _, direction := range []int{1, -1} {
		docs, err := p.src.all(ctx, c.Name.DB, c.Name.String(), bson.D{{Key: "aggregate", Value: c.Name.Coll}, {Key: "cursor", Value: bson.D{}}, {Key: "hint", Value: byID}, {Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: direction}}}}, bson.D{{Key: "$limit", Value: 1}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "_id", Value: 0}, {Key: "types", Value: bson.A{bson.D{{Key: "$type", Value: "$_id"}}}}}}},
		}}})
		if err != nil {
			return needs(err, "look at the _ids of "+c.Name.String(), "read on the database "+c.Name.DB)
		}
		if len(docs) == 1 {
			types = append(types, distinctTypes(docs[0].Lookup("types"))...)
		}
	}
	slices.Sort(types)
	if types = slices.Compact(types); len(types) > 1 {
		p.add(SeverityNote, CodeMixedIDs, c.Name, "", "its _ids are of several types (seen: %s): all of them are copied, in the order of the index", strings.Join(types, ", "))
	}
	return nil
}

// survey is the aggregation behind documents.
func survey(whole bool, size int) bson.A {
	type D = bson.D
	odd := func(of any) D { // the first name of an object's fields that is odd, in an array
		return D{{Key: "$slice", Value: bson.A{D{{Key: "$filter", Value: D{
			{Key: "input", Value: D{{Key: "$map", Value: D{{Key: "input", Value: D{{Key: "$objectToArray", Value: of}}}, {Key: "in", Value: "$$this.k"}}}}},
			{Key: "cond", Value: D{{Key: "$or", Value: bson.A{
				D{{Key: "$eq", Value: bson.A{"$$this", ""}}},
				D{{Key: "$eq", Value: bson.A{D{{Key: "$substrCP", Value: bson.A{"$$this", 0, 1}}}, D{{Key: "$literal", Value: "$"}}}}},
				D{{Key: "$gte", Value: bson.A{D{{Key: "$indexOfCP", Value: bson.A{"$$this", "."}}}, 0}}},
			}}}},
		}}}, 1}}}
	}
	inner := D{{Key: "$reduce", Value: D{
		{Key: "input", Value: D{{Key: "$objectToArray", Value: "$$ROOT"}}}, {Key: "initialValue", Value: bson.A{}},
		{Key: "in", Value: D{{Key: "$cond", Value: bson.A{
			D{{Key: "$eq", Value: bson.A{D{{Key: "$type", Value: "$$this.v"}}, "object"}}},
			D{{Key: "$slice", Value: bson.A{D{{Key: "$concatArrays", Value: bson.A{"$$value", odd("$$this.v")}}}, 1}}},
			"$$value",
		}}}},
	}}}
	stages := bson.A{
		D{{Key: "$project", Value: D{{Key: "_id", Value: 0}, {Key: "size", Value: D{{Key: "$bsonSize", Value: "$$ROOT"}}}, {Key: "type", Value: D{{Key: "$type", Value: "$_id"}}},
			{Key: "odd", Value: D{{Key: "$slice", Value: bson.A{D{{Key: "$concatArrays", Value: bson.A{odd("$$ROOT"), inner}}}, 1}}}}}}},
		D{{Key: "$group", Value: D{{Key: "_id", Value: nil}, {Key: "n", Value: D{{Key: "$sum", Value: 1}}}, {Key: "max", Value: D{{Key: "$max", Value: "$size"}}},
			{Key: "near", Value: D{{Key: "$sum", Value: D{{Key: "$cond", Value: bson.A{D{{Key: "$gte", Value: bson.A{"$size", nearLimit}}}, 1, 0}}}}}},
			{Key: "types", Value: D{{Key: "$addToSet", Value: "$type"}}}, {Key: "odd", Value: D{{Key: "$addToSet", Value: "$odd"}}}}}},
		D{{Key: "$project", Value: D{{Key: "n", Value: 1}, {Key: "max", Value: 1}, {Key: "near", Value: 1}, {Key: "types", Value: 1}, {Key: "odd", Value: D{{Key: "$slice", Value: bson.A{"$odd", 2 * maxNames}}}}}}},
	}
	if whole {
		return stages
	}
	return append(bson.A{D{{Key: "$sample", Value: D{{Key: "size", Value: size}}}}}, stages...)
}

// judge makes findings of what a survey has found.
func (p *preflight) judge(c replicator.Collection, found bson.Raw, whole bool) {
	n, _ := found.Lookup("n").AsInt64OK()
	of := fmt.Sprintf("of all %d documents", n)
	if !whole {
		of = fmt.Sprintf("in a sample of %d of about %d documents", n, c.Documents)
	}
	var odd []string
	for _, names := range strings2(found.Lookup("odd")) {
		for _, name := range names {
			odd = append(odd, fmt.Sprintf("%q", name))
		}
	}
	if len(odd) > 0 {
		slices.Sort(odd)
		p.add(SeverityNote, CodeFieldNames, c.Name, "", "names of fields that are empty or hold a dollar sign or a dot (%s; %s): they are copied as they are; updates of single fields are applied by writing the whole document",
			strings.Join(odd[:min(len(odd), maxNames)], ", "), of)
	}
	largest, _ := found.Lookup("max").AsInt64OK()
	if near, _ := found.Lookup("near").AsInt64OK(); near > 0 {
		p.add(SeverityWarning, CodeLargeDocuments, c.Name, "nothing, unless their _ids are large: an event holds the _id three times and must fit into 16 MB",
			"documents of %d MB or more: %d, the largest with %d bytes (%s); each is read and written alone", nearLimit>>20, near, largest, of)
	}
}

// distinctTypes returns the names of types; the types of numbers are one, as an index does not tell them apart.
func distinctTypes(v bson.RawValue) []string {
	var types []string
	for _, t := range values(v) {
		name := t.StringValue()
		switch name {
		case "int", "long", "double", "decimal":
			name = "number"
		}
		types = append(types, name)
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// strings2 reads an array of arrays of strings.
func strings2(v bson.RawValue) [][]string {
	var out [][]string
	outer := values(v)
	for _, o := range outer {
		var one []string
		inner := values(o)
		for _, i := range inner {
			one = append(one, i.StringValue())
		}
		out = append(out, one)
	}
	return out
}
