// Package mongodb is MongoDB for package replicator: a Source that reads a deployment, a Target that writes to one, and
// at the destination a Store of what routes remember and Letters for what could not be applied.
//
// It promises what the interfaces of package replicator say, and in short: documents pass as bytes; what a call of a Target reports
// as written is committed by the majority of a replica set; what an earlier attempt, or an earlier process, left in a frozen
// server's sockets never overwrites what came later (see Target). It promises nothing about the order of calls: that is the
// caller's.
package mongodb
