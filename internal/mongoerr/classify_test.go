package mongoerr

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

func raw(t *testing.T, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// command is the error of a command that the server refused as a whole.
func command(code int32, text string) error {
	return mongo.CommandError{Code: code, Message: text}
}

// lost is the error of a connection that broke under a command.
func lost(cause error) error {
	inner := driver.Error{Labels: []string{driver.NetworkError}, Wrapped: topology.ConnectionError{Wrapped: cause}}
	return mongo.CommandError{Labels: inner.Labels, Wrapped: inner}
}

// dial is the error of a connection that could not be made.
func dial(cause error) error {
	inner := driver.Error{Labels: []string{driver.ErrSystemOverloadedError, driver.ErrRetryableError, driver.NetworkError},
		Wrapped: topology.ConnectionError{Wrapped: cause}}
	return mongo.CommandError{Labels: inner.Labels, Wrapped: inner}
}

type clearedError struct{}

func (clearedError) Error() string   { return "connection pool was cleared" }
func (clearedError) Retryable() bool { return true }

func cleared() error {
	inner := driver.Error{Labels: []string{driver.TransientTransactionError}, Wrapped: clearedError{}}
	return mongo.CommandError{Labels: inner.Labels, Wrapped: inner}
}

func selection(memberErr error) error {
	return topology.ServerSelectionError{Wrapped: context.DeadlineExceeded,
		Desc: description.Topology{Servers: []description.Server{{LastError: memberErr}}}}
}

func concern(code int) *mongo.WriteConcernError { return &mongo.WriteConcernError{Code: code} }

func duplicate(t *testing.T, index int, keys ...string) mongo.WriteErrors {
	pattern := bson.D{}
	for _, k := range keys {
		pattern = append(pattern, bson.E{Key: k, Value: 1})
	}
	return mongo.WriteErrors{{Index: index, Code: 11000, Raw: raw(t, bson.D{{Key: "index", Value: index}, {Key: "keyPattern", Value: pattern}})}}
}

// TestClassifyKnowsEveryWayAnAttemptEnds is the error table of the failover layer and of the tailer.
func TestClassifyKnowsEveryWayAnAttemptEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want Class // Event, Network and Timeout are looked at below
	}{
		{"nothing", nil, Class{Index: -1}},
		{"no server in time", selection(nil), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"no connection in time", topology.WaitQueueTimeoutError{Wrapped: context.DeadlineExceeded}, Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"pool cleared, bare", fmt.Errorf("open: %w", error(clearedError{})), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"pool cleared, wrapped", cleared(), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"too little time left", fmt.Errorf("calculated: %w", driver.ErrDeadlineWouldBeExceeded), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"dial refused", dial(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"name does not resolve", topology.ConnectionError{Wrapped: &net.DNSError{Name: "x"}}, Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Untouched: true, Index: -1}},
		{"bad certificate", topology.ConnectionError{Wrapped: x509.UnknownAuthorityError{}}, Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Untouched: true, Index: -1}},
		{"bad certificate seen by the monitor", selection(x509.UnknownAuthorityError{}), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Untouched: true, Index: -1}},
		{"client closed", mongo.ErrClientDisconnected, Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Untouched: true, Index: -1}},
		{"read time-out", lost(context.DeadlineExceeded), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Index: -1}},
		{"cancelled in flight", lost(context.Canceled), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Index: -1}},
		{"connection closed", lost(io.EOF), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Index: -1}},
		{"connection reset", lost(syscall.ECONNRESET), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Index: -1}},
		{"bare deadline", context.DeadlineExceeded, Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Index: -1}},
		{"not primary", command(10107, ""), Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Code: 10107, Untouched: true, Index: -1}},
		{"state change", command(11602, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 11602, Index: -1}},
		{"stepped down", command(189, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 189, Index: -1}},
		{"shutdown", command(91, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 91, Index: -1}},
		{"time limit at the server", command(50, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 50, Index: -1}},
		{"disk full", command(14031, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 14031, Index: -1}},
		{"unknown code", command(4711, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 4711, Index: -1}},
		{"overload label of a server, no code", mongo.CommandError{Labels: []string{driver.ErrSystemOverloadedError, driver.ErrRetryableError}}, Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Index: -1}},
		{"overload label on a bad certificate", dial(x509.UnknownAuthorityError{}), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Untouched: true, Index: -1}},
		{"unknown code that invites to try again", mongo.CommandError{Code: 4711, Labels: []string{driver.RetryableWriteError, driver.NoWritesPerformed}}, Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 4711, Index: -1}},
		{"unknown error", errors.New("x"), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Index: -1}},
		{"unauthorised", command(13, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 13, Untouched: true, Index: -1}},
		{"wrong password", command(18, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 18, Untouched: true, Index: -1}},

		{"write concern timed out", mongo.WriteException{WriteConcernError: concern(64)}, Class{Write: WriteUncommitted, Read: ReadRetry, Tail: TailReopen, Code: 64, Uncommitted: true, Index: -1}},
		{"write concern ran into maxTimeMS", mongo.WriteException{WriteConcernError: concern(50)}, Class{Write: WriteUncommitted, Read: ReadRetry, Tail: TailReopen, Code: 50, Uncommitted: true, Index: -1}},
		{"write concern, primary gone", mongo.WriteException{WriteConcernError: concern(11602)}, Class{Write: WriteUncommitted, Read: ReadRetry, Tail: TailReopen, Code: 11602, Uncommitted: true, Index: -1}},
		{"write concern, unknown code", mongo.WriteException{WriteConcernError: concern(4711)}, Class{Write: WriteUncommitted, Read: ReadRetry, Tail: TailReopen, Code: 4711, Uncommitted: true, Index: -1}},
		{"write concern never possible", mongo.WriteException{WriteConcernError: concern(100)}, Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 100, Uncommitted: true, Index: -1}},
		{"duplicate _id, committed", mongo.WriteException{WriteErrors: duplicate(t, 3, "_id")}, Class{Write: WriteDuplicate, Read: ReadStop, Tail: TailRefused, Code: 11000, OnID: true, Index: 3}},
		{"duplicate _id, not committed", mongo.WriteException{WriteErrors: duplicate(t, 0, "_id"), WriteConcernError: concern(50)}, Class{Write: WriteDuplicate, Read: ReadStop, Tail: TailRefused, Code: 11000, OnID: true, Uncommitted: true}},
		{"duplicate on another index", mongo.WriteException{WriteErrors: duplicate(t, 0, "src", "seq")}, Class{Write: WriteDuplicate, Read: ReadStop, Tail: TailRefused, Code: 11000, Untouched: true}},
		{"duplicate in a bulk write", mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{{WriteError: duplicate(t, 7, "_id")[0]}}}, Class{Write: WriteDuplicate, Read: ReadStop, Tail: TailRefused, Code: 11000, OnID: true, Index: 7}},
		{"validator", mongo.WriteException{WriteErrors: mongo.WriteErrors{{Index: 2, Code: 121}}}, Class{Write: WriteRejected, Read: ReadStop, Tail: TailRefused, Code: 121, Index: 2}},
		{"not primary in the middle of a batch", mongo.WriteException{WriteErrors: mongo.WriteErrors{{Index: 2, Code: 10107}}}, Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Code: 10107, Index: 2}},
		{"wrong UUID", mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 361}}}, Class{Write: WriteStop, Read: ReadStop, Tail: TailGone, Code: 361, Untouched: true}},

		{"position lost", command(136, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailLost, Code: 136, Index: -1}},
		{"dropped under a tail", command(175, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailGone, Code: 175, Index: -1}},
		{"wrong UUID for a tail", command(361, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailGone, Code: 361, Untouched: true, Index: -1}},
		{"not capped", command(2, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 2, Untouched: true, Index: -1}},
		{"view", command(168, ""), Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Code: 168, Untouched: true, Index: -1}},
		{"cursor gone", command(43, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 43, Index: -1}},
		{"cursor killed", command(237, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 237, Index: -1}},
		{"operation killed", command(11601, ""), Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Code: 11601, Index: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := Classify(tt.err)
			if tt.err != nil && got.Event == "" {
				t.Error("no event named")
			}
			got.Event, got.Network, got.Timeout = "", false, false
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestClassifyTellsTimeoutsFromBrokenConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err              error
		network, timeout bool
	}{
		{lost(context.DeadlineExceeded), true, true},
		{lost(io.EOF), true, false},
		{selection(nil), true, true},
		{cleared(), true, false},
		{mongo.WriteException{WriteConcernError: concern(50)}, false, true},
		{command(10107, ""), false, false},
	} {
		if c := Classify(tt.err); c.Network != tt.network || c.Timeout != tt.timeout {
			t.Errorf("%v: network %t, timeout %t; want %t, %t", tt.err, c.Network, c.Timeout, tt.network, tt.timeout)
		}
	}
}

func TestEveryRowIsCompleteAndUnique(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, r := range rows {
		if r.name == "" || r.event == "" || r.cmd == WriteOK || r.doc == WriteOK || r.read == ReadOK || r.tail == TailOK {
			t.Errorf("row %d is incomplete: %+v", r.code, r)
		}
		if seen[r.code] {
			t.Errorf("code %d is there twice", r.code)
		}
		seen[r.code] = true
		if r.cmd == WriteNotSent && !r.untouched && r.code != 112 {
			t.Errorf("code %d: not sent, yet not untouched", r.code)
		}
	}
}

func TestActualCollectionTellsARenameFromADrop(t *testing.T) {
	t.Parallel()
	renamed := mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 361, Raw: raw(t, bson.D{{Key: "actualCollection", Value: "b"}})}}}
	dropped := mongo.CommandError{Code: 361, Raw: raw(t, bson.D{{Key: "actualCollection", Value: nil}})}
	for _, tt := range []struct {
		err  error
		name string
		ok   bool
	}{{renamed, "b", true}, {dropped, "", true}, {fmt.Errorf("insert: %w", dropped), "", true}, {command(26, ""), "", false}, {nil, "", false}} {
		if name, ok := ActualCollection(tt.err); name != tt.name || ok != tt.ok {
			t.Errorf("%v: %q, %t; want %q, %t", tt.err, name, ok, tt.name, tt.ok)
		}
	}
}

func TestWrongCredentialsAreNotACannotConnect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err             error
		connect, logins bool
	}{
		{nil, false, false},
		{selection(nil), true, false},
		{dial(syscall.ECONNREFUSED), true, false},
		{topology.ConnectionError{Wrapped: x509.UnknownAuthorityError{}}, true, false},
		{command(18, ""), false, true},
		{command(13, ""), false, false},
		{lost(io.EOF), false, false},
	} {
		if c, l := CannotConnect(tt.err), BadCredentials(tt.err); c != tt.connect || l != tt.logins {
			t.Errorf("%v: cannot connect %t, bad credentials %t; want %t, %t", tt.err, c, l, tt.connect, tt.logins)
		}
	}
}

func TestNotCappedAndViewsAreTold(t *testing.T) {
	t.Parallel()
	notCapped := command(2, "error processing query: tailable cursor requested on non capped collection")
	if !IsNotCapped(notCapped) || IsNotCapped(command(2, "bad sort")) || IsView(notCapped) {
		t.Error("not capped is not told from other bad values")
	}
	if !IsView(command(168, "")) || !IsView(command(166, "")) {
		t.Error("a view is not told")
	}
}

func TestReadsThatFindNoPlaceOrNoTimeAreTold(t *testing.T) {
	t.Parallel()
	ahead := command(72, "readConcern afterClusterTime value must not be greater than the current clusterTime. Requested …")
	if !IsTimeAhead(ahead) || !IsTimeAhead(fmt.Errorf("read: %w", ahead)) || IsTimeAhead(command(72, "bad options")) || IsTimeAhead(nil) {
		t.Error("a time that the server has not heard of is not told from other invalid options")
	}
	if !IsRecordGone(command(211, "")) || IsRecordGone(ahead) || IsRecordGone(nil) {
		t.Error("a record that is gone is not told")
	}
}
