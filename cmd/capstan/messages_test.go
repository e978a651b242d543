package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/seed-12ef14e5/capstan/record"
)

func TestAnUnreachableServerIsSaidWithoutTheDriversDump(t *testing.T) {
	t.Parallel()
	dump := errors.New("server selection error: server selection timeout, current topology: { Type: Unknown, Servers: [" +
		"{ Addr: a:1, Type: Unknown, Last error: dial tcp 10.0.0.1:1: connect: connection refused }, " +
		"{ Addr: b:2, Type: Unknown, Last error: lookup b:2: no such host }, ] }")
	want := "cannot connect to MongoDB: a:1: dial tcp 10.0.0.1:1: connect: connection refused; lookup b:2: no such host"
	if got := errorText(&connectError{dump}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	err := &connectError{topology.ServerSelectionError{
		Desc:    description.Topology{Kind: description.TopologyKindReplicaSetNoPrimary},
		Wrapped: context.DeadlineExceeded,
	}}
	if got := errorText(err); strings.Contains(got, "topology") || !strings.Contains(hint(err), "replicaSet=") {
		t.Errorf("wrong set: %s; hint %s", got, hint(err))
	}
}

func TestGzipInputIsSaidToBeThat(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte("one\ntwo\n"))
	_ = z.Close()
	_, err := newLineReader(nil, &b, false).next()
	if !errors.Is(err, errGzip) || !strings.Contains(err.Error(), "zcat") {
		t.Errorf("got %v", err)
	}
}

func TestTheAgeOfACheckpointIsThatOfItsPosition(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	c := record.Checkpoint{Position: record.Position{TS: record.Timestamp{T: 910, I: 1}}}
	if got := age(c, now); got != "1m30s" {
		t.Errorf("got %s", got)
	}
	if got := age(record.Checkpoint{Lines: 3}, now); got != "-" {
		t.Errorf("of a producer: %s", got)
	}
}
