package localcluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// needsNetwork skips the test where no cluster can have a network. In CI it fails instead as root,
// unless it is the container that forbids it.
func needsNetwork(t *testing.T) {
	t.Helper()
	if err := CheckNetwork(); err != nil {
		if os.Getenv("CI") == "true" && os.Geteuid() == 0 && !errors.Is(err, fs.ErrPermission) {
			t.Fatal(err)
		}
		t.Skip("needs root on Linux, with ip and nft: ", err)
	}
}

// hostNetwork describes the links, addresses, routes and rules of this computer's own namespace.
func hostNetwork(t *testing.T) string {
	t.Helper()
	var all string
	for _, args := range [][]string{{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"nft", "list", "ruleset"}} {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		all += string(out)
	}
	return all
}

// reach dials an address by a dialer and returns the error. A cut way lets nothing through, so it
// ends with the time; a way that is open answers within it even on a busy computer.
func reach(t *testing.T, d options.ContextDialer, addr string, patience time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// clientVia connects to the cluster's URI by a dialer.
func clientVia(t *testing.T, c *Cluster, d options.ContextDialer) *mongo.Client {
	t.Helper()
	cl, err := mongo.Connect(options.Client().ApplyURI(c.URI()).SetDialer(d))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Disconnect(t.Context()) })
	return cl
}

func TestAClusterInANetworkOfItsOwnIsReachedFromInsideOnlyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	before := hostNetwork(t)
	c := start(t, Config{Members: 3, Network: true, Auth: true, TLS: true, Set: "abc"})
	if during := hostNetwork(t); during != before {
		t.Errorf("the computer's own network was\n%s\nand is\n%s", before, during)
	}
	if uri := c.URI(); !strings.Contains(uri, "@198.18.0.11:27017,198.18.0.12:27017,198.18.0.13:27017/") || !strings.Contains(uri, "replicaSet=abc") {
		t.Errorf("URI %s", uri)
	}
	if _, err := clientVia(t, c, c.Dialer()).Database("d").Collection("c").InsertOne(t.Context(), bson.D{}); err != nil {
		t.Error(err)
	}
	m := machine(t, c, "app")
	if again := machine(t, c, "app"); *again != *m {
		t.Errorf("made twice: %+v, %+v", m, again)
	}
	if other := machine(t, c, "b"); other.Addr() == m.Addr() || m.Addr() != "198.18.0.101" {
		t.Errorf("addresses %s and %s", m.Addr(), other.Addr())
	}
	if n, err := clientVia(t, c, m.Dialer()).Database("d").Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
		t.Errorf("from the machine: %d, %v", n, err)
	}
	out, err := m.Command(t.Context(), "ip", "-o", "addr", "show", "dev", link).Output()
	if err != nil || !strings.Contains(string(out), m.Addr()) {
		t.Errorf("a program on the machine sees %q, %v", out, err)
	}
	if _, err := c.Machine(t.Context(), "No Name"); err == nil {
		t.Error("a bad name is taken")
	}
	opened, err := Open(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range opened.Status(t.Context()) {
		if !m.Running() || m.Role != RolePrimary && m.Role != RoleSecondary {
			t.Errorf("another process sees %+v", m)
		}
	}
	network := c.network()
	down(t, c)
	left, err := network.spaces()
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := os.Stat(network.record()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("record: %v", err)
	}
	if after := hostNetwork(t); after != before {
		t.Errorf("the computer's own network was\n%s\nand is\n%s", before, after)
	}
	if _, err := c.Machine(t.Context(), "late"); err == nil {
		t.Error("a machine is made after Down")
	}
}

func machine(t *testing.T, c *Cluster, name string) *Machine {
	t.Helper()
	m, err := c.Machine(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
