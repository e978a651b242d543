package outage

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/stream"
)

// commander makes the command of a capstan subcommand on one machine.
type commander func(ctx context.Context, args ...string) *exec.Cmd

// lane is a replica set with the machines of its clients, on which trials run one after the other. Not safe
// for concurrent use.
type lane struct {
	cfg     *Config
	number  int
	profile failover.Profile
	disk    bool
	cluster *localcluster.Cluster
	// machines are the writer's, the reader's, and one for the rest.
	machines map[string]*localcluster.Machine
	client   *mongo.Client // of the engine, which no fault cuts off
}

// Machines of the clients.
const (
	writerMachine = "writer"
	readerMachine = "reader"
	otherMachine  = "probe"
)

const (
	// laneDown bounds taking a lane down.
	laneDown = time.Minute
	// diskMB is the size of the small disks: a fresh member with a small oplog and its journal takes some
	// 350 MB.
	diskMB      = 768
	diskOplogMB = 64
)

// startLane starts a set and its machines.
func startLane(ctx context.Context, cfg *Config, number int, profile failover.Profile, disk bool) (*lane, error) {
	l := &lane{cfg: cfg, number: number, profile: profile, disk: disk, machines: make(map[string]*localcluster.Machine)}
	c := localcluster.Config{Members: 3, Network: cfg.Network, ServerDefaults: profile == failover.ProfileDefault, Label: "capstan bench failover", Logger: cfg.Logger}
	if disk {
		c.DiskMB, c.OplogMB = diskMB, diskOplogMB
	}
	var err error
	if l.cluster, err = localcluster.Start(ctx, c); err != nil {
		return nil, err
	}
	if err := l.prepare(ctx); err != nil {
		return nil, errors.Join(err, l.close(ctx))
	}
	return l, nil
}

// prepare makes machines, collections and the engine's client.
func (l *lane) prepare(ctx context.Context) (err error) {
	if l.cfg.Network {
		for _, name := range []string{writerMachine, readerMachine, otherMachine} {
			if l.machines[name], err = l.cluster.Machine(ctx, name); err != nil {
				return err
			}
		}
	}
	if l.client, err = mongo.Connect(l.options(l.cluster.URI())); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	db := l.client.Database(Database)
	if _, err := stream.Ensure(ctx, db, Messages, stream.Config{Size: l.messagesSize()}); err != nil {
		return err
	}
	for _, r := range []Role{Writer, Plain, FreshID, One} {
		// Not unique: a duplicate must be possible to be found.
		index := mongo.IndexModel{Keys: bson.D{{Key: "writer", Value: 1}, {Key: "seq", Value: 1}}}
		if _, err := db.Collection(CollectionOf(r)).Indexes().CreateOne(ctx, index); err != nil {
			return fmt.Errorf("create index: %w", err)
		}
	}
	if err := db.CreateCollection(ctx, probes); err != nil {
		return fmt.Errorf("create collection: %w", err)
	}
	return nil
}

func (l *lane) messagesSize() int64 {
	if l.disk {
		return messagesSize / 32
	}
	return messagesSize
}

// options are those of the engine's own clients: in the middle of the network, where no fault reaches.
func (l *lane) options(uri string) *options.ClientOptions {
	return options.Client().ApplyURI(uri).SetDialer(l.cluster.Dialer()).SetAppName("capstan bench failover").
		SetServerSelectionTimeout(engineTimeout).SetConnectTimeout(engineTimeout)
}

// engineTimeout bounds what the engine asks of a server that should be there.
const engineTimeout = 10 * time.Second

// on returns what runs a subcommand of capstan on a machine.
func (l *lane) on(machine string) commander {
	return func(ctx context.Context, args ...string) *exec.Cmd {
		var cmd *exec.Cmd
		if m := l.machines[machine]; m != nil {
			cmd = m.Command(ctx, l.cfg.Program, args...)
		} else {
			cmd = exec.CommandContext(ctx, l.cfg.Program, args...)
		}
		cmd.Env = append(cmd.Environ(), "CAPSTAN_URI="+l.cluster.URI(), "CAPSTAN_LOG_LEVEL=off")
		return cmd
	}
}

func (l *lane) clients() []*localcluster.Machine {
	var all []*localcluster.Machine
	for _, m := range l.machines {
		all = append(all, m)
	}
	return all
}

func (l *lane) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), laneDown)
	defer cancel()
	if l.client != nil {
		_ = l.client.Disconnect(ctx) // it has only asked
	}
	return l.cluster.Down(ctx)
}

// startLanes starts n lanes one after the other: together they would starve each other's elections.
func startLanes(ctx context.Context, cfg *Config, n int, profile failover.Profile, disk bool) (lanes []*lane, err error) {
	for i := range n {
		l, err := startLane(ctx, cfg, i+1, profile, disk)
		if err != nil {
			return nil, errors.Join(err, closeLanes(ctx, lanes))
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

func closeLanes(ctx context.Context, lanes []*lane) error {
	var g errgroup.Group
	for _, l := range lanes {
		g.Go(func() error { return l.close(ctx) })
	}
	return g.Wait()
}
