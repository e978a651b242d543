package mongoerr

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// IsTransactionTooOld reports whether the server refused a retryable write because the session was used with a higher
// transaction number.
func IsTransactionTooOld(err error) bool { return has(err, codeTransactionTooOld) }

// IsHistoryIncomplete reports whether the server no longer knows what an earlier attempt of a retryable write has done.
func IsHistoryIncomplete(err error) bool { return has(err, codeHistoryIncomplete) }

// IsInvalid reports whether a collection's validator refused a document.
func IsInvalid(err error) bool { return has(err, codeValidation) }

// IsImmutable reports whether an update was refused because it would change the _id: to a collation "a" and "A" are one.
func IsImmutable(err error) bool { return has(err, codeImmutableField) }

// IsKnown reports whether the server's code is in the table.
func IsKnown(err error) bool {
	if we, ok := errors.AsType[mongo.WriteException](err); ok && len(we.WriteErrors) > 0 {
		_, known := byCode[we.WriteErrors[0].Code]
		return known
	}
	ce, ok := errors.AsType[mongo.CommandError](err)
	if !ok {
		return false
	}
	_, known := byCode[int(ce.Code)]
	return known
}

// DuplicateFilter returns a query for the document that holds the value of the unique index which raw, a duplicate key
// error as sent by the server, is about, and the index's collation, if it has one. doc is the document that was refused. The
// query is nil if the server does not say which index it is.
func DuplicateFilter(raw, doc bson.Raw) (bson.D, *options.Collation) {
	pattern, ok := raw.Lookup("keyPattern").DocumentOK()
	if !ok {
		return nil, nil
	}
	value, ok := raw.Lookup("keyValue").DocumentOK()
	if !ok {
		return nil, nil
	}
	var collation *options.Collation
	if c, ok := raw.Lookup("collation").DocumentOK(); ok {
		collation = &options.Collation{}
		if bson.Unmarshal(c, collation) != nil {
			return nil, nil
		}
	}
	keys, err := pattern.Elements()
	if err != nil || len(keys) == 0 {
		return nil, nil
	}
	var filter bson.D
	for _, k := range keys {
		v, err := value.LookupErr(k.Key())
		if collation != nil {
			// Then what the server names is not the value but what it is compared by.
			v, err = doc.LookupErr(strings.Split(k.Key(), ".")...)
		}
		if err != nil {
			v = bson.RawValue{Type: bson.TypeNull}
		}
		filter = append(filter, bson.E{Key: k.Key(), Value: bson.D{{Key: "$eq", Value: v}}})
	}
	return filter, collation
}

// IsIndexConflict reports whether an index was not made because another one has its name or its keys.
func IsIndexConflict(err error) bool {
	return has(err, codeIndexOptionsConflict, codeIndexKeySpecsConflict, codeIndexExists)
}

// IsIndexNotFound reports whether there is no such index.
func IsIndexNotFound(err error) bool { return has(err, codeIndexNotFound) }

// CannotConvertIndex reports whether an index was not made unique because documents have equal values.
func CannotConvertIndex(err error) bool { return has(err, codeCannotConvertIndex) }

// IsBadOption reports whether the server refused an option, or what it says together with others.
func IsBadOption(err error) bool { return has(err, codeBadValue, codeInvalidOptions) }

// IsTooLargeForCache reports whether the storage engine had no room in its cache for one write. It passes when other writes
// have reached the disk, unless the cache is very small (documents of 16 MB, and 256 MB of cache that others use too).
func IsTooLargeForCache(err error) bool { return has(err, codeTooLargeForCache) }
