package mongoerr

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// has reports whether the server answered with one of codes, whatever the form of the error.
func has(err error, codes ...int) bool {
	se, ok := errors.AsType[mongo.ServerError](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if se.HasErrorCode(c) {
			return true
		}
	}
	return false
}

// IsNotCapped reports whether a tailable cursor was refused because the collection is not capped.
// It is the one place where a text decides: the server's code, BadValue, says too little.
func IsNotCapped(err error) bool {
	ce, ok := errors.AsType[mongo.CommandError](err)
	return ok && ce.Code == codeBadValue && strings.HasSuffix(ce.Message, "tailable cursor requested on non capped collection")
}

// IsView reports whether the command was refused because the namespace is a view.
func IsView(err error) bool { return has(err, codeViewCommand, codeViewTail) }

// IsNamespaceExists reports whether a create found a collection of that name.
func IsNamespaceExists(err error) bool { return has(err, codeNamespaceExists) }

// IsInvalidSetConfig reports whether a replica set's configuration was refused as such.
func IsInvalidSetConfig(err error) bool { return has(err, codeInvalidSetConfig) }

// IsNotFound reports whether the collection or database does not exist.
func IsNotFound(err error) bool { return has(err, codeNamespaceNotFound) }

// IsUnauthorized reports whether the user is known but may not do this.
func IsUnauthorized(err error) bool { return has(err, codeUnauthorized) }

// IsDuplicateID reports whether at least one document was refused because its _id is taken.
func IsDuplicateID(err error) bool {
	c := Classify(err)
	return c.Write == WriteDuplicate && c.OnID
}

// IsRecordGone reports whether a scan in natural order could not go on, as the record that it was to go on behind does
// not exist (any more).
func IsRecordGone(err error) bool { return has(err, codeKeyNotFound) }

// IsTimeAhead reports whether a read was refused because the server has not heard yet of the cluster time that it was to
// wait for. The code, InvalidOptions, says too little, so the text decides.
func IsTimeAhead(err error) bool {
	ce, ok := errors.AsType[mongo.CommandError](err)
	return ok && ce.Code == codeInvalidOptions && strings.Contains(ce.Message, "afterClusterTime")
}

// IsPositionLost reports whether a cursor on a capped collection lost its place (CappedPositionLost).
func IsPositionLost(err error) bool { return has(err, codePositionLost) }

// IsHistoryLost reports whether the oplog rolled over a change stream's position.
func IsHistoryLost(err error) bool { return has(err, codeHistoryLost) }

// IsTokenRefused reports whether the server cannot find, or does not take, a change stream's token.
func IsTokenRefused(err error) bool { return has(err, codeFatalChangeStream, codeInvalidToken) }

// IsTooLarge reports whether a document, or an event of a change stream, is larger than a server sends.
func IsTooLarge(err error) bool { return has(err, codeObjectTooLarge) }

// IsNoChangeStreams reports whether a change stream was refused because the server is no member of a set.
func IsNoChangeStreams(err error) bool { return has(err, codeNoChangeStreams) }

// IsOutOfDiskSpace reports whether the server's disk is full.
func IsOutOfDiskSpace(err error) bool { return has(err, codeOutOfDiskSpace) }

// IsUUIDMismatch reports whether a command named a collection by name and UUID, and they do not
// belong together (any more).
func IsUUIDMismatch(err error) bool { return has(err, codeUUIDMismatch) }

// ActualCollection says, for an error of IsUUIDMismatch, under which name the collection with that
// UUID is now: "" if it does not exist. ok is false for any other error.
func ActualCollection(err error) (name string, ok bool) {
	if !IsUUIDMismatch(err) {
		return "", false
	}
	for _, raw := range rawErrors(err) {
		if v, err := raw.LookupErr("actualCollection"); err == nil {
			name, _ = v.StringValueOK() // null after a drop
			return name, true
		}
	}
	return "", true
}

func rawErrors(err error) []bson.Raw {
	var raws []bson.Raw
	if ce, ok := errors.AsType[mongo.CommandError](err); ok {
		raws = append(raws, ce.Raw)
	}
	if we, ok := errors.AsType[mongo.WriteException](err); ok {
		for _, e := range we.WriteErrors {
			raws = append(raws, e.Raw)
		}
	}
	if be, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		for _, e := range be.WriteErrors {
			raws = append(raws, e.Raw)
		}
	}
	return raws
}

// CannotConnect reports whether no usable connection to any server could be made: wrong address,
// nothing listening, TLS refused, no primary in time. Wrong credentials are not among these.
func CannotConnect(err error) bool {
	if err == nil || BadCredentials(err) {
		return false
	}
	if _, ok := errors.AsType[topology.ServerSelectionError](err); ok {
		return true
	}
	if _, ok := notSent(err); ok {
		return true
	}
	return badTLS(err)
}

// BadCredentials reports whether the server refused the user name, password or certificate.
func BadCredentials(err error) bool {
	return has(err, codeAuthenticationFailed, codeUserNotFound, codeAtlas)
}

// IsNoPrimary reports whether members of a replica set were looked for and none of them was usable: no
// primary is elected, they are down, or the set has another name than the connection string says.
func IsNoPrimary(err error) bool {
	sel, ok := errors.AsType[topology.ServerSelectionError](err)
	return ok && sel.Desc.Kind.String() == "ReplicaSetNoPrimary"
}
