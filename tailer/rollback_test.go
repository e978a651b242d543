package tailer

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// on returns coll as one member has it.
func on(t *testing.T, d *mongotest.Deployment, member string, coll *mongo.Collection) *mongo.Collection {
	t.Helper()
	uri, err := d.Cluster.MemberURI(member)
	if err != nil {
		t.Fatal(err)
	}
	return (&mongotest.Deployment{URI: uri}).DB(t).Client().Database(coll.Database().Name()).Collection(coll.Name())
}

// replication stops or starts the secondaries' copying. Freezing them would not do: what the primary
// has sent waits in their sockets, and is applied when they thaw, although the primary is dead. And
// they go on voting, so the primary stays.
func replication(t *testing.T, secondaries []*mongo.Collection, mode string) {
	t.Helper()
	for _, c := range secondaries {
		cmd := bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}
		if err := c.Database().Client().Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// contents returns the ids of the messages in coll, in natural order, without the primer.
func contents(t *testing.T, coll *mongo.Collection) []record.ID {
	t.Helper()
	cur, err := coll.Find(t.Context(), bson.D{{Key: "src", Value: bson.D{{Key: "$exists", Value: true}}}}, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.Raw
	if err := cur.All(t.Context(), &docs); err != nil {
		t.Fatal(err)
	}
	ids := make([]record.ID, len(docs))
	for i, doc := range docs {
		ids[i] = record.IDOf(doc.Lookup("_id"))
	}
	return ids
}

func idsOf(records []record.Record) []record.ID {
	ids := make([]record.ID, len(records))
	for i, r := range records {
		ids[i] = r.Position.ID
	}
	return ids
}

// T16, section 4.2: a failover takes messages back that a majority never had. A majority tail never
// showed them (I1, I4). A local one did, and goes on: with every new src, and with the old one from the
// first seq that it has not delivered.
func TestARollbackTakesNothingBackThatAMajorityTailDelivered(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: []string{"--setParameter", "enableTestCommands=1"}})
	db := d.DB(t)
	coll, one := db.Collection("s", mongoCollectionMajority()), db.Collection("s", mongoCollectionOne())
	makeStream(t, coll, 1<<20, 0)
	earliest := record.Start{Where: record.Earliest}
	var why reasons
	majority := open(t, d, coll, Config{Start: earliest, Visibility: Majority})
	local := open(t, d, coll, Config{Start: earliest, Visibility: Local, Hooks: Hooks{OnReopen: why.add}})
	a, b := newTally(), newTally()
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 10)
	a.until(t, majority, w.src, 10)
	b.until(t, local, w.src, 10)

	var secondaries []*mongo.Collection
	for _, m := range d.Cluster.Status(t.Context()) {
		if m.Role == localcluster.RoleSecondary {
			secondaries = append(secondaries, on(t, d, m.Name, coll))
		}
	}
	replication(t, secondaries, "alwaysOn")
	doomed := &writer{coll: one, src: w.src, seq: w.seq}
	doomed.send(t, 5)
	b.until(t, local, w.src, 15)
	for range 5 {
		silent(t, majority)
	}
	killed, err := d.Cluster.Kill(t.Context(), "primary")
	if err != nil {
		t.Fatal(err)
	}
	replication(t, secondaries, "off")
	w.send(t, 3) // 11 to 13, other messages than the ones before
	born := &writer{coll: coll, src: "b/1"}
	born.send(t, 10)
	a.until(t, majority, born.src, 10)
	b.until(t, local, born.src, 10)
	if b.delivered[w.src] != 15 {
		t.Errorf("the local tail delivered %v", b.delivered)
	}

	if _, err := d.Cluster.Start(t.Context(), killed.Name); err != nil {
		t.Fatal(err)
	}
	back := on(t, d, killed.Name, coll)
	eventually(t, func() bool {
		n, err := back.CountDocuments(t.Context(), bson.D{{Key: "src", Value: bson.D{{Key: "$exists", Value: true}}}})
		return err == nil && n == 23 // 10, 3, and 10 of the new src: the 5 were rolled back
	})
	w.send(t, 7) // 14 to 20
	born.send(t, 10)
	a.until(t, majority, born.src, 20)
	b.until(t, local, born.src, 20)
	silent(t, majority)
	silent(t, local)

	if got, want := idsOf(a.records), contents(t, coll.Clone(options.Collection().SetReadConcern(readconcern.Majority()))); !slices.Equal(got, want) {
		t.Errorf("the majority tail delivered %d records, the stream holds %d messages, or in another order", len(got), len(want))
	}
	// DESIGN.md: under a seq that was rolled back another message is not delivered to a local reader.
	if b.delivered[w.src] != 20 || b.delivered[born.src] != 20 || len(b.gaps) != 0 {
		t.Errorf("the local tail delivered %v, gaps %v", b.delivered, b.gaps)
	}
	t.Log("the local tail was opened again:", why.all())

	// I3: so does a reader that starts again at a position that was rolled back.
	at := b.records[14]
	if at.Src != w.src || at.Seq != 15 {
		t.Fatalf("record 14 is %s %d", at.Src, at.Seq)
	}
	c := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: at.Position, Marks: map[string]int64{w.src: 15}}})
	if c.delivered[w.src] != 5 || c.delivered[born.src] != 20 || len(c.gaps) != 0 {
		t.Errorf("a resume there delivered %v, gaps %v", c.delivered, c.gaps)
	}
}

// T17, section 4.2: with several writers the members' natural orders differ. A resume on another member
// than the one that was read, from any place, loses nothing and doubles nothing (I1, I3, I4). What a
// tail that runs meanwhile does is shown by TestFailoversCostNothing.
func TestAResumeOnANewPrimaryIsExactAlthoughItsOrderDiffers(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s", mongoCollectionOne())
	makeStream(t, coll, 16<<20, 0)
	reader := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Visibility: Local})
	const perSrc = 1500
	srcs := []string{"a/1", "b/1", "c/1", "d/1"}
	var sending sync.WaitGroup
	for _, src := range srcs {
		sending.Go(func() {
			w := &writer{coll: coll, src: src}
			for range perSrc / 50 {
				w.send(t, 50)
			}
		})
	}
	whole := newTally()
	for _, src := range srcs {
		whole.until(t, reader, src, perSrc)
	}
	sending.Wait()
	// The stepdown waits until another member has everything.
	if _, err := d.Cluster.StepDown(t.Context(), "primary"); err != nil {
		t.Fatal(err)
	}
	last := &writer{coll: coll.Clone(mongoCollectionMajority()), src: "last/1"}
	last.send(t, 1)
	whole.until(t, reader, last.src, 1)

	order := contents(t, coll)
	elsewhere := 0
	for i, id := range idsOf(whole.records) {
		if order[i] != id {
			elsewhere++
		}
	}
	t.Logf("%d of %d messages stand elsewhere on the new primary", elsewhere, len(order))
	marks := map[string]int64{}
	for i, r := range whole.records {
		marks[r.Src] = r.Seq
		// Every place would take minutes; a prime step meets each kind.
		if i%397 != 0 && i != len(whole.records)-2 {
			continue
		}
		got := all(t, d, coll, Config{Visibility: Local, Start: record.Start{Where: record.After, Position: r.Position, Marks: maps.Clone(marks)}})
		for _, src := range append(srcs, last.src) {
			want := int64(perSrc)
			if src == last.src {
				want = 1
			}
			if got.delivered[src] != want-marks[src] {
				t.Errorf("after %d: %s: delivered %d, want %d", i, src, got.delivered[src], want-marks[src])
			}
		}
		if len(got.gaps) != 0 {
			t.Errorf("after %d: gaps %v", i, got.gaps)
		}
	}
}
