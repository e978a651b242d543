package mongoerr

// row is what one server error code means. A code comes back in three places, and they mean
// different things for a write: as the failure of a whole command (cmd), as the failure of one
// document of an ordered insert (doc: everything before it is applied, it and the rest are not),
// and as a write concern error (see classifyConcern).
type row struct {
	code int
	name string
	// event is what happened at the server.
	event string
	cmd   Write
	doc   Write
	read  Read
	tail  Tail
	// untouched: the check that gives this code runs before the command changes anything.
	untouched bool
}

// rows is the whole table; a code that is not in it stops everything, with the write's outcome
// unknown. Names and meanings are those of MongoDB 6.0's error_codes.yml. The server tests of this
// package produce every row on a real mongod, by its event or, where that cannot be forced, by a fail
// point, and compare what it means for a write with what is stored afterwards: a row without either
// fails them. docs/ERRORS.md is made from this table.
var rows = []row{
	// Another member is or will be primary.
	{10107, "NotWritablePrimary", "the member is no primary (stepped down, or never was)", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, true},
	{13435, "NotPrimaryNoSecondaryOk", "the member is no primary and the read may not go to a secondary", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, true},
	{13436, "NotPrimaryOrSecondary", "the member is recovering, starting or rolling back", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, true},
	{10058, "LegacyNotPrimary", "the member is no primary (old wording)", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, true},
	{11602, "InterruptedDueToReplStateChange", "the member changed state while the command ran", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{189, "PrimarySteppedDown", "the primary stepped down while the command ran", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{91, "ShutdownInProgress", "the server is shutting down (quiesce mode)", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{11600, "InterruptedAtShutdown", "the server is shutting down", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},

	// The server could not reach others, or ran out of time.
	{6, "HostUnreachable", "the server could not reach another one", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{7, "HostNotFound", "the server could not resolve another one", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{89, "NetworkTimeout", "the server waited too long for another one", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{9001, "SocketException", "the server lost a connection", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{codeMaxTimeMSExpired, "MaxTimeMSExpired", "the attempt's deadline passed at the server", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{262, "ExceededTimeLimit", "the operation exceeded a time limit of the server", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{64, "WriteConcernFailed", "replication did not get the write to enough members in time", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{134, "ReadConcernMajorityNotAvailableYet", "the member has no majority snapshot yet (just started or elected)", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{133, "FailedToSatisfyReadPreference", "no member fits the read preference", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{246, "SnapshotUnavailable", "the snapshot is not there (yet)", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{462, "IngressRequestRateLimitExceeded", "an overloaded server refused the command", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, true},

	// The operation was interrupted or had bad luck.
	{11601, "Interrupted", "killOp or killAllSessions", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{237, "CursorKilled", "killCursors while a getMore waited", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{43, "CursorNotFound", "killCursors, an expired session, or a restarted server", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{24, "LockTimeout", "a lock was not granted in time", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{46, "LockBusy", "a lock is held by another operation", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},
	{112, "WriteConflict", "the storage engine saw a conflicting write", WriteNotSent, WriteNotSent, ReadRetry, TailReopen, false},
	{codeHistoryIncomplete, "IncompleteTransactionHistory", "the session's history was truncated", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{codeTransactionTooOld, "TransactionTooOld", "a newer transaction number was used in the session", WriteUnknown, WriteUnknown, ReadRetry, TailReopen, false},
	{codeOutOfDiskSpace, "OutOfDiskSpace", "the server's disk is full", WriteUnknown, WriteNotSent, ReadRetry, TailReopen, false},

	// The collection is not what it was.
	{codePositionLost, "CappedPositionLost", "the capped collection rolled over the cursor, or its document was deleted", WriteUnknown, WriteUnknown, ReadRetry, TailLost, false},
	{codeHistoryLost, "ChangeStreamHistoryLost", "the oplog rolled over a change stream's position", WriteUnknown, WriteUnknown, ReadStop, TailLost, false},
	{codeQueryPlanKilled, "QueryPlanKilled", "dropped, renamed, converted, or rolled back (catalog re-opened)", WriteUnknown, WriteUnknown, ReadRetry, TailGone, false},
	{codeUUIDMismatch, "CollectionUUIDMismatch", "the collection was dropped, re-created or renamed", WriteStop, WriteStop, ReadStop, TailGone, true},
	{codeNamespaceNotFound, "NamespaceNotFound", "the collection or database does not exist", WriteStop, WriteStop, ReadStop, TailGone, true},
	{codeNamespaceExists, "NamespaceExists", "a collection of this name exists", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeViewCommand, "CommandNotSupportedOnView", "the namespace is a view", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeViewTail, "InvalidPipelineOperator", "a tailable cursor on a view", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{73, "InvalidNamespace", "the name is not allowed", WriteStop, WriteStop, ReadStop, TailRefused, true},

	// A change stream.
	{codeFatalChangeStream, "ChangeStreamFatalError", "a change stream cannot go on: its token is not found, or its pipeline removed it", WriteUnknown, WriteUnknown, ReadStop, TailRefused, false},
	{codeInvalidToken, "InvalidResumeToken", "a change stream does not take the token: it is malformed, or that of an invalidate event", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{47, "NoMatchingDocument", "a change stream that requires images met a change without one", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeNoChangeStreams, "Location40573", "a change stream on a server that is no member of a set", WriteStop, WriteStop, ReadStop, TailRefused, true},

	// Who we are.
	{codeUnauthorized, "Unauthorized", "the user may not do this", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeAuthenticationFailed, "AuthenticationFailed", "wrong user name or password", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeUserNotFound, "UserNotFound", "no such user", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{391, "ReauthenticationRequired", "the server ended the credentials of this connection", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeAtlas, "AtlasError", "a hosted service refused the user", WriteStop, WriteStop, ReadStop, TailRefused, true},

	// The document.
	{11000, "DuplicateKey", "a document with this key exists", WriteDuplicate, WriteDuplicate, ReadStop, TailRefused, false},
	{11001, "DuplicateKeyOnUpdate", "a document with this key exists (old code)", WriteDuplicate, WriteDuplicate, ReadStop, TailRefused, false},
	{12582, "DuplicateKeyInCapped", "a document with this key exists (old code)", WriteDuplicate, WriteDuplicate, ReadStop, TailRefused, false},
	{codeValidation, "DocumentValidationFailure", "the collection's validator refused the document", WriteRejected, WriteRejected, ReadStop, TailRefused, true},
	{codeObjectTooLarge, "BSONObjectTooLarge", "the document is too large", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{17280, "KeyTooLong", "an index key is too long", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{16755, "CannotExtractGeoKeys", "a geo index cannot take the document", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{22, "InvalidBSON", "the bytes are no BSON", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{52, "DollarPrefixedFieldName", "a field name starts with a dollar sign", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{53, "InvalidIdField", "the _id has a type that is not allowed", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{54, "NotSingleValueField", "a field must hold one value", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{55, "InvalidDBRef", "a DBRef is malformed", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{56, "EmptyFieldName", "a field name is empty", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{codeImmutableField, "ImmutableField", "an update would change the _id", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{57, "DottedFieldName", "a field name holds a dot", WriteStop, WriteRejected, ReadStop, TailRefused, true},

	// The command, or the server's configuration.
	{codeBadValue, "BadValue", "a bad value; for a tail: the collection is not capped", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{9, "FailedToParse", "the command or filter is malformed", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{14, "TypeMismatch", "a field has the wrong type", WriteStop, WriteRejected, ReadStop, TailRefused, true},
	{20, "IllegalOperation", "not possible on this kind of collection or deployment", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{59, "CommandNotFound", "the server does not know the command", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{codeInvalidOptions, "InvalidOptions", "options that exclude each other", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{123, "NotAReplicaSet", "needs a replica set", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{40415, "UnknownField", "the server is too old for a field of the command (collectionUUID needs 6.0)", WriteStop, WriteStop, ReadStop, TailRefused, true},
	{79, "UnknownReplWriteConcern", "the write concern names a mode that the set does not have", WriteStop, WriteStop, ReadStop, TailRefused, false},
	{codeUnsatisfiableWriteConcern, "UnsatisfiableWriteConcern", "the write concern asks for more members than the set has", WriteStop, WriteStop, ReadStop, TailRefused, false},
}

// The codes that helpers ask for by name.
const (
	codeBadValue                  = 2
	codeUserNotFound              = 11
	codeUnauthorized              = 13
	codeAuthenticationFailed      = 18
	codeNamespaceNotFound         = 26
	codeNamespaceExists           = 48
	codeInvalidOptions            = 72
	codeInvalidSetConfig          = 93
	codeMaxTimeMSExpired          = 50
	codeImmutableField            = 66
	codeIndexNotFound             = 27
	codeIndexExists               = 68
	codeIndexOptionsConflict      = 85
	codeIndexKeySpecsConflict     = 86
	codeCannotConvertIndex        = 359
	codeTooLargeForCache          = 388
	codeUnknownReplWriteConcern   = 79
	codeUnsatisfiableWriteConcern = 100
	codeValidation                = 121
	codePositionLost              = 136
	codeViewCommand               = 166
	codeViewTail                  = 168
	codeQueryPlanKilled           = 175
	codeKeyNotFound               = 211
	codeInvalidToken              = 260
	codeFatalChangeStream         = 280
	codeHistoryLost               = 286
	codeUUIDMismatch              = 361
	codeHistoryIncomplete         = 217
	codeTransactionTooOld         = 225
	codeAtlas                     = 8000
	codeObjectTooLarge            = 10334
	codeOutOfDiskSpace            = 14031
	codeNoChangeStreams           = 40573
)

var byCode = func() map[int]row {
	m := make(map[int]row, len(rows))
	for _, r := range rows {
		m[r.code] = r
	}
	return m
}()

// lookup returns the row of code. An unknown code stops: what it did to a write is unknown, and
// trying again could make it worse.
func lookup(code int) row {
	if r, ok := byCode[code]; ok {
		return r
	}
	return row{code: code, event: "an error that capstan does not know", cmd: WriteStop, doc: WriteStop, read: ReadStop, tail: TailRefused}
}
