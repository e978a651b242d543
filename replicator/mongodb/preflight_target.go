package mongodb

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// target looks at the destination.
func (p *preflight) target(ctx context.Context) error {
	hello, err := p.dst.command(ctx, "admin", "hello", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return err
	}
	if p.r.Target, err = p.dst.Identity(ctx); err != nil {
		return err
	}
	id := p.r.Target
	kind := "the replica set " + id.SetName
	switch msg, _ := hello.Lookup("msg").StringValueOK(); {
	case msg == "isdbgrid":
		kind = "a sharded cluster"
		p.add(SeverityWarning, CodeSharded, none, "use a replica set as the destination, or make the collections and their shard keys first", "the destination is a mongos: collections that a route creates there are not sharded")
	case id.SetName == "":
		kind = "a standalone server"
		p.add(SeverityWarning, CodeTargetStandalone, none, "restart it with --replSet and call rs.initiate(); one member is enough",
			"the destination is a standalone server: it has no sessions that fence off a late write, and no majority")
	}
	if major(id.Version) < major(p.r.Source.Version) {
		p.add(SeverityWarning, CodeVersion, none, "upgrade the destination first", "the destination (MongoDB %s) is older than the source (%s): options and types that it does not know are refused there", id.Version, p.r.Source.Version)
	}
	p.add(SeverityOK, CodeTarget, none, "", "the destination is %s, MongoDB %s", kind, id.Version)
	p.loops()
	if err := p.privileges(ctx); err != nil {
		return err
	}
	if err := p.occupied(ctx); err != nil {
		return err
	}
	return p.disk(ctx)
}

// loops looks whether the route would read what it writes.
func (p *preflight) loops() {
	s, t := p.r.Source, p.r.Target
	if s.SetID == "" || s.SetID != t.SetID {
		return
	}
	before := len(p.r.Findings)
	for _, c := range p.collections {
		if to := p.set.Target(c.Name); p.set.Matches(to) {
			p.add(SeverityBlocker, CodeLoop, c.Name, "rename it to a name that the route does not select, or choose another destination",
				"source and destination are the same deployment, and %s is part of the route: it would read what it writes", to)
		}
	}
	if len(p.r.Findings) == before {
		p.add(SeverityNote, CodeSameDeployment, none, "", "source and destination are the same deployment, with other names")
	}
}

// writing are the actions that a route needs on what it writes, and the role that has them.
var writing = map[string]string{
	"find": "readWrite", "insert": "readWrite", "update": "readWrite", "remove": "readWrite", "createCollection": "readWrite", "createIndex": "readWrite",
	"dropCollection": "readWrite", "dropIndex": "readWrite", "collMod": "dbAdmin", "bypassDocumentValidation": "dbAdmin",
}

// privileges asks what the user may do, without doing it. A server without access control allows everything.
func (p *preflight) privileges(ctx context.Context) error {
	reply, err := p.dst.command(ctx, "admin", "connectionStatus", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if err != nil {
		return err
	}
	users := values(reply.Lookup("authInfo", "authenticatedUsers"))
	if len(users) == 0 {
		// Nobody has logged in: then either everything is allowed, or nothing, and a read tells.
		if _, err := p.dst.command(ctx, scope.Own, scope.Own, bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}}); mongoerr.IsUnauthorized(err) {
			p.add(SeverityBlocker, CodePermission, none, "put a user and password into the destination's connection string", "the destination demands a login")
		}
		return nil
	}
	granted := values(reply.Lookup("authInfo", "authenticatedUserPrivileges"))
	dbs := []string{scope.Own}
	for _, c := range p.collections {
		if db := p.set.Target(c.Name).DB; !slices.Contains(dbs, db) {
			dbs = append(dbs, db)
		}
	}
	slices.Sort(dbs)
	ok := true
	for _, db := range dbs {
		missing := map[string][]string{}
		for action, role := range writing {
			if !may(granted, db, action) {
				missing[role] = append(missing[role], action)
			}
		}
		for role, actions := range missing {
			slices.Sort(actions)
			severity := SeverityBlocker
			if role == "dbAdmin" {
				severity = SeverityWarning
			}
			ok = false
			p.add(severity, CodePermission, record.Namespace{DB: db}, "grant the destination's user the role "+role+" on the database "+db, "at the destination, the user may not: %s", strings.Join(actions, ", "))
		}
	}
	if ok {
		p.add(SeverityOK, CodePermission, none, "", "the destination's user may write to %s", strings.Join(dbs, ", "))
	}
	return nil
}

// may reports whether one of the privileges allows an action on the collections of db.
func may(granted []bson.RawValue, db, action string) bool {
	for _, g := range granted {
		doc, ok := g.DocumentOK()
		if !ok {
			continue
		}
		if anything, _ := doc.Lookup("resource", "anyResource").BooleanOK(); !anything {
			on, isDB := doc.Lookup("resource", "db").StringValueOK()
			coll, _ := doc.Lookup("resource", "collection").StringValueOK()
			if !isDB || on != "" && on != db || coll != "" {
				continue
			}
		}
		actions := values(doc.Lookup("actions"))
		for _, a := range actions {
			if s, _ := a.StringValueOK(); s == action || s == "anyAction" {
				return true
			}
		}
	}
	return false
}

// occupied looks at what the destination holds under the names of the route.
func (p *preflight) occupied(ctx context.Context) error {
	reply, err := p.dst.command(ctx, "admin", "listDatabases", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if mongoerr.IsUnauthorized(err) {
		return nil // said by privileges
	}
	if err != nil {
		return err
	}
	byCase := map[string]string{}
	for _, v := range values(reply.Lookup("databases")) {
		name, _ := v.Document().Lookup("name").StringValueOK()
		byCase[strings.ToLower(name)] = name
	}
	said := map[string]bool{}
	for _, c := range p.collections {
		to := p.set.Target(c.Name)
		there, ok := byCase[strings.ToLower(to.DB)]
		switch {
		case !ok:
			continue
		case there != to.DB:
			if !said[to.DB] {
				said[to.DB] = true
				p.add(SeverityBlocker, CodeDatabaseCase, c.Name, "map it to "+there+".* or to another name", "the destination has a database %s, which differs from %s in case only: the server refuses that", there, to.DB)
			}
			continue
		}
		if err := p.existing(ctx, c, to); err != nil {
			return err
		}
	}
	return nil
}

// existing looks at one collection of the destination.
func (p *preflight) existing(ctx context.Context, c replicator.Collection, to record.Namespace) error {
	docs, err := p.dst.all(ctx, to.DB, to.String(), bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}, {Key: "filter", Value: bson.D{{Key: "name", Value: to.Coll}}}})
	if mongoerr.IsUnauthorized(err) || err == nil && len(docs) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if t, _ := docs[0].Lookup("type").StringValueOK(); t != "collection" && c.Kind != replicator.KindView {
		p.add(SeverityBlocker, CodeNotEmpty, c.Name, "map it to another name, or drop it", "the destination has %s, a %s", to, t)
		return nil
	}
	if c.Kind == replicator.KindView {
		p.add(SeverityNote, CodeExists, c.Name, "", "the destination has %s; it is left alone if it is the same view", to)
		return nil
	}
	found, err := p.dst.all(ctx, to.DB, to.String(), bson.D{{Key: "find", Value: to.Coll}, {Key: "projection", Value: byID}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}})
	if mongoerr.IsUnauthorized(err) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case len(found) == 0:
		p.add(SeverityNote, CodeExists, c.Name, "", "the destination has %s, which is empty; its options and indexes are kept where they are the same", to)
	case p.cfg.Existing == replicator.MergeExisting:
		p.add(SeverityWarning, CodeNotEmpty, c.Name, "", "the destination's %s has documents: what differs is replaced, and what the source does not have is removed", to)
	case p.cfg.Existing == replicator.DropExisting:
		p.add(SeverityWarning, CodeNotEmpty, c.Name, "", "the destination's %s has documents: it is dropped first", to)
	default:
		p.add(SeverityBlocker, CodeNotEmpty, c.Name, "empty it, map to another name, or let the route merge or drop what exists", "the destination's %s has documents, and the route refuses that", to)
	}
	return nil
}

// disk compares what would be copied with what is free, where the destination says so.
func (p *preflight) disk(ctx context.Context) error {
	reply, err := p.dst.command(ctx, "admin", "dbStats", bson.D{{Key: "dbStats", Value: 1}})
	if mongoerr.Classify(err).Code != 0 {
		return nil // not allowed, or not known
	}
	if err != nil {
		return err
	}
	total, ok1 := reply.Lookup("fsTotalSize").AsInt64OK()
	used, ok2 := reply.Lookup("fsUsedSize").AsInt64OK()
	if !ok1 || !ok2 || total == 0 {
		return nil
	}
	free := total - used
	if free < p.r.Bytes {
		p.add(SeverityWarning, CodeDisk, none, "make room: the data are compressed there, and its indexes, journal and oplog need room too", "the destination's disk has %d MB free, the data have %d MB uncompressed, without indexes", free>>20, p.r.Bytes>>20)
		return nil
	}
	p.add(SeverityOK, CodeDisk, none, "", "the destination's disk has %d MB free, the data have %d MB uncompressed, without indexes", free>>20, p.r.Bytes>>20)
	return nil
}
