package replication

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// demoSet is a collection of the demo: a file of it, and what makes documents of the same shape.
type demoSet struct {
	name string
	most int
	make func(r *rand.Rand) bson.D
}

func demoSets(flights int) []demoSet {
	return []demoSet{
		{"flights", flights, func(r *rand.Rand) bson.D {
			return bson.D{{Key: "delay", Value: int32(r.IntN(200) - 60)}, {Key: "distance", Value: int32(r.IntN(3000))}, {Key: "time", Value: r.Float64() * 24}}
		}},
		{"movies", 3201, func(r *rand.Rand) bson.D {
			votes := any(int32(r.IntN(100_000)))
			if r.IntN(5) == 0 {
				votes = nil
			}
			return bson.D{{Key: "Title", Value: fmt.Sprintf("Film %d: “Ä”", r.IntN(10_000))}, {Key: "US Gross", Value: r.Int64N(1e9)}, {Key: "Director", Value: nil},
				{Key: "IMDB Rating", Value: float64(r.IntN(100)) / 10}, {Key: "IMDB Votes", Value: votes}}
		}},
		{"earthquakes", 1707, func(r *rand.Rand) bson.D {
			return bson.D{{Key: "type", Value: "Feature"}, {Key: "properties", Value: bson.D{{Key: "mag", Value: r.Float64() * 8}, {Key: "place", Value: "somewhere"}, {Key: "alert", Value: nil}}},
				{Key: "geometry", Value: bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{r.Float64()*360 - 180, r.Float64()*180 - 90, r.Float64() * 100}}}}}
		}},
	}
}

// fill writes the set, with _ids that count from 0. generated says that there was no file.
func (s demoSet) fill(ctx context.Context, db *mongo.Database, dir string, seed uint64) (n int64, generated bool, err error) {
	next, end, err := s.open(dir, seed)
	if err != nil {
		return 0, false, err
	}
	defer end()
	var batch []any
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := db.Collection(s.name).InsertMany(ctx, batch, options.InsertMany().SetOrdered(false))
		batch = batch[:0]
		return err
	}
	for n < int64(s.most) {
		d, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return n, false, fmt.Errorf("read %s, record %d: %w", s.name, n+1, err)
		}
		batch = append(batch, append(bson.D{{Key: "_id", Value: n}}, d...))
		if n++; len(batch) == fillBatch {
			if err := flush(); err != nil {
				return n, false, fmt.Errorf("write %s: %w", s.name, err)
			}
		}
	}
	_, statErr := os.Stat(s.path(dir))
	return n, statErr != nil, flush()
}

func (s demoSet) path(dir string) string { return filepath.Join(dir, s.name+".ndjson.gz") }

// open returns what yields one record after the other: of the file if there is one.
func (s demoSet) open(dir string, seed uint64) (next func() (bson.D, error), end func(), err error) {
	f, err := os.Open(s.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		r := rand.New(rand.NewPCG(seed, uint64(s.most)))
		return func() (bson.D, error) { return s.make(r), nil }, func() {}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open data: %w", err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open data %s: %w", f.Name(), err), f.Close())
	}
	lines := bufio.NewReader(z)
	return func() (bson.D, error) {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var d bson.D
		err = bson.UnmarshalExtJSON(line, false, &d)
		return d, err
	}, func() { _ = f.Close() }, nil // only read
}
