package mongodb

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// minVersion is the oldest server whose change streams tell of indexes and options (showExpandedEvents).
	minVersion = 6
	// windowFactor is how much longer than the estimated copy the oplog should reach back.
	windowFactor = 3
	// rateTime is how long the source is read to measure its rate.
	rateTime = 500 * time.Millisecond
)

// source looks at the deployment, and reports whether its contents can be looked at.
func (p *preflight) source(ctx context.Context) (usable bool, err error) {
	hello, err := p.src.command(ctx, "admin", "hello", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return false, err
	}
	if p.r.Source, err = p.src.Identity(ctx); err != nil {
		return false, err
	}
	id := p.r.Source
	if msg, _ := hello.Lookup("msg").StringValueOK(); msg == "isdbgrid" {
		p.add(SeverityBlocker, CodeSharded, none, "replicate each shard's replica set by a route of its own", "the source is a mongos: routes read replica sets")
		return false, nil
	}
	if id.SetName == "" {
		p.add(SeverityBlocker, CodeNoReplicaSet, none, "restart it with --replSet and call rs.initiate(), or replicate a capped collection by a stream route",
			"the source is a standalone server, which keeps no oplog to follow")
	}
	if major(id.Version) < minVersion {
		p.add(SeverityBlocker, CodeVersion, none, "upgrade the source to 6.0 or newer", "the source is MongoDB %s, whose change streams do not tell of indexes and options", id.Version)
		return false, nil
	}
	p.compatibility(ctx)
	if id.SetName != "" {
		p.add(SeverityOK, CodeSource, none, "", "the source is the replica set %s, MongoDB %s", id.SetName, id.Version)
		p.follows(ctx)
	}
	return true, nil
}

func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(first)
	return n
}

// compatibility looks at the feature compatibility version, where that may be read.
func (p *preflight) compatibility(ctx context.Context) {
	reply, err := p.src.command(ctx, "admin", "getParameter", bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
	if err != nil {
		return
	}
	if v, ok := reply.Lookup("featureCompatibilityVersion", "version").StringValueOK(); ok && major(v) < minVersion {
		p.add(SeverityBlocker, CodeFCV, none, `run db.adminCommand({setFeatureCompatibilityVersion: "6.0"}) at the source`,
			"the source runs as MongoDB %s (its featureCompatibilityVersion)", v)
	}
}

// follows tries whether changes can be followed, and whether the oplog can be looked at.
func (p *preflight) follows(ctx context.Context) {
	if _, err := p.src.Position(ctx, p.set); err != nil {
		role := "readAnyDatabase"
		if db := p.set.Database(); db != "" {
			role = "read on the database " + db
		}
		p.add(SeverityBlocker, CodePermission, none, "grant the source's user the role "+role, "changes of the source cannot be followed: %v", shortly(err))
	}
	clock, err := p.src.Clock(ctx, record.Position{})
	switch {
	case err != nil:
		p.add(SeverityWarning, CodePermission, none, "look at the source's state (rs.status())", "the source does not say where it is: %v", shortly(err))
	case clock.Oldest.IsZero():
		p.add(SeverityWarning, CodePermission, none, "grant the source's user the role read on the database local",
			"how far the source's oplog reaches back may not be read, so nothing can warn before the route's position is lost")
	default:
		p.r.OplogWindow = time.Duration(clock.Head.T-clock.Oldest.T) * time.Second
	}
	if id := p.r.Source; id.SetID == id.SetName {
		p.add(SeverityNote, CodePermission, none, "grant the role clusterMonitor, so that another set of the same name is told apart", "the source's set is known by its name only")
	}
}

// window compares the oplog's window with how long the copy may take.
func (p *preflight) window(ctx context.Context) error {
	rate, err := p.rate(ctx)
	if err != nil {
		return err
	}
	p.r.ReadRate = rate
	if rate > 0 {
		read := time.Duration(float64(p.r.Bytes) / rate * float64(time.Second))
		write := time.Duration(p.r.Documents) * time.Second / AssumedRate
		p.r.CopyTime = max(read, write)
	}
	if p.r.OplogWindow == 0 {
		return nil
	}
	const text = "the oplog reaches back %v; copying %d documents (%d MB) is estimated at %v, by reading %.0f MB/s (measured on a sample) and writing %d documents/s (assumed)"
	args := []any{p.r.OplogWindow, p.r.Documents, p.r.Bytes >> 20, p.r.CopyTime.Round(time.Second), rate / (1 << 20), AssumedRate}
	if p.r.OplogWindow < windowFactor*p.r.CopyTime {
		p.add(SeverityWarning, CodeOplogWindow, none, "enlarge the oplog (replSetResizeOplog), or copy in parts: the position must not be lost before the copy ends", text, args...)
		return nil
	}
	p.add(SeverityOK, CodeOplogWindow, none, "", text, args...)
	return nil
}

// rate reads the largest collection for a moment, and returns bytes a second.
func (p *preflight) rate(ctx context.Context) (float64, error) {
	var largest replicator.Collection
	for _, c := range p.collections {
		if c.Kind == replicator.KindCollection && c.Bytes > largest.Bytes {
			largest = c
		}
	}
	if largest.Bytes == 0 {
		return 0, nil
	}
	start, size := time.Now(), 0
	for r := (replicator.Range{}); !r.Done && time.Since(start) < rateTime; {
		w, err := p.src.Window(ctx, largest, r, replicator.DefaultWindow, nil, record.Timestamp{})
		if mongoerr.IsUnauthorized(err) {
			p.add(SeverityBlocker, CodePermission, largest.Name, "grant the role read on the database "+largest.Name.DB, "the collection may not be read")
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		for _, d := range w.Documents {
			size += len(d)
		}
		r.At, r.Done = w.At, w.Done
	}
	return float64(size) / time.Since(start).Seconds(), nil
}

// options looks at what kind of collection c is.
func (p *preflight) options(c replicator.Collection) {
	note := func(code, format string, args ...any) { p.add(SeverityNote, code, c.Name, "", format, args...) }
	switch c.Kind {
	case replicator.KindTimeseries:
		p.add(SeverityWarning, CodeTimeseries, c.Name, "exclude it, and copy it by mongodump and mongorestore", "a time-series collection gives no changes, so it does not replicate")
		return
	case replicator.KindView:
		p.view(c)
		return
	case replicator.KindCapped:
		note(CodeCapped, "a capped collection is copied by one writer in its order; what it overwrites by itself is not deleted at the destination by the route")
		if p.set.Filter(c.Name) != nil {
			p.add(SeverityWarning, CodeCappedFilter, c.Name, "leave the filter out, or make the destination's collection an ordinary one",
				"a filter on a capped collection: a document that leaves the filter is deleted, and one that comes into it later is appended out of order")
		}
	}
	has := func(field string) bool { _, err := c.Options.LookupErr(field); return err == nil }
	if has("clusteredIndex") {
		note(CodeClustered, "a clustered collection is created as one, and may be copied as one range")
	}
	if has("validator") {
		note(CodeValidator, "the validator is created at the destination too; documents that it would refuse are written all the same (bypassDocumentValidation)")
	}
	if has("collation") {
		note(CodeCollation, "the collection's collation is created at the destination before the first document; one that exists with another collation is refused")
	}
	if on, _ := c.Options.Lookup("changeStreamPreAndPostImages", "enabled").BooleanOK(); on {
		note(CodePreImages, "pre- and post-images are turned on at the destination; the images that exist are not copied")
	}
	if has("encryptedFields") {
		p.add(SeverityWarning, CodeEncrypted, c.Name, "include its metadata collections (enxcol_.*) in the route", "queryable encryption keeps part of the collection in others")
	}
}

func (p *preflight) view(c replicator.Collection) {
	on, _ := c.Options.Lookup("viewOn").StringValueOK()
	p.add(SeverityNote, CodeView, c.Name, "", "a view on %s is created as a view; it has no documents of its own", on)
	if under := (record.Namespace{DB: c.Name.DB, Coll: on}); !p.set.Matches(under) {
		p.add(SeverityWarning, CodeViewSource, c.Name, "include "+under.String()+", or exclude the view", "the view shows %s, which is not part of the route", under)
	} else if to := p.set.Target(under); to.DB != p.set.Target(c.Name).DB || to.Coll != on {
		p.add(SeverityWarning, CodeViewSource, c.Name, "rename whole databases, or exclude the view", "the view shows %s, which is %s at the destination", under, to)
	}
}

// indexes looks at indexes that need care while a route runs.
func (p *preflight) indexes(c replicator.Collection) {
	for _, index := range c.Indexes {
		name, _ := index.Lookup("name").StringValueOK()
		if unique, _ := index.Lookup("unique").BooleanOK(); unique && name != "_id_" {
			p.add(SeverityNote, CodeUniqueIndex, c.Name, "", "unique index %s: changes that collide with a document that is not up to date yet wait for that one; what collides for good becomes a dead letter", name)
		}
		if seconds, ok := index.Lookup("expireAfterSeconds").AsInt64OK(); ok {
			if p.cfg.KeepTTL {
				p.add(SeverityWarning, CodeTTLIndex, c.Name, "let the route hold expiry back", "TTL index %s expires after %d s at the destination too, by its clock", name, seconds)
			} else {
				p.add(SeverityNote, CodeTTLIndex, c.Name, "call finalize when the destination is to stand alone", "TTL index %s (%d s) is held back: documents expire at the destination when the source deletes them", name, seconds)
			}
		}
	}
}

// filter lets the server judge the query, in the form in which the copy asks it.
func (p *preflight) filter(ctx context.Context, c replicator.Collection) error {
	query := p.set.Filter(c.Name)
	if query == nil {
		return nil
	}
	_, err := p.src.command(ctx, c.Name.DB, c.Name.String(), bson.D{{Key: "explain", Value: bson.D{
		{Key: "find", Value: c.Name.Coll}, {Key: "filter", Value: bson.D{{Key: "$and", Value: bson.A{query}}}}, {Key: "hint", Value: byID},
	}}, {Key: "verbosity", Value: "queryPlanner"}})
	switch {
	case mongoerr.Classify(err).Code != 0:
		p.add(SeverityBlocker, CodeFilter, c.Name, "correct the query; geographic nearness and text search cannot filter a route", "the server refuses the filter: %v", shortly(err))
	case err != nil:
		return err
	default:
		p.add(SeverityOK, CodeFilter, c.Name, "", "the server understands the filter; documents that leave it are deleted at the destination")
	}
	return nil
}

// maxNames bounds what a finding quotes.
const maxNames = 5

// names looks at the names that collections would have at the destination.
func (p *preflight) names() {
	const maxNamespace, maxDatabase = 255, 63
	by := make(map[record.Namespace]record.Namespace)
	byCase := make(map[string]string)
	for _, c := range p.collections {
		to := p.set.Target(c.Name)
		if n := len(to.String()); n > maxNamespace || len(to.DB) > maxDatabase {
			p.add(SeverityBlocker, CodeNameLength, c.Name, "map it to a shorter name", "its name at the destination has %d bytes (a database's %d): %d and %d are possible", n, len(to.DB), maxNamespace, maxDatabase)
		}
		if other, taken := by[to]; taken {
			p.add(SeverityBlocker, CodeNameCollision, c.Name, "map them to different names", "%s and %s would both be %s at the destination", other, c.Name, to)
		}
		by[to] = c.Name
		lower := strings.ToLower(to.DB)
		if other, taken := byCase[lower]; taken && other != to.DB {
			p.add(SeverityBlocker, CodeDatabaseCase, c.Name, "map one of them to another name", "the databases %s and %s differ in case only, which a server refuses", other, to.DB)
		}
		byCase[lower] = to.DB
	}
}

// errTooSlow says that a sample was given up.
var errTooSlow = errors.New("the sample took too long")
