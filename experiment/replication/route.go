package replication

import (
	"context"
	"fmt"
	"os"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// Route is a route of an experiment.
type Route struct {
	Name  string
	Scope scope.Config
}

// Program says how a replicator is run.
type Program struct {
	// Path is the program, "" for the one that runs this.
	Path string
	// Args returns the arguments that make it replicate route between the sides of p.
	Args func(p *Pair, route Route) []string
	// Memory opens what the replicator stores at the destination; nil for one that stores nothing: then a document that arrives says
	// that all before it has.
	Memory func(p *Pair) (Memory, error)
}

// Memory is what a replicator stores.
type Memory interface {
	// Load returns the state of a route, replicator.ErrNoRoute if there is none.
	Load(ctx context.Context, route string) (replicator.State, error)
	// Letters is how many dead letters it has.
	Letters(ctx context.Context, route string) (int64, error)
	// Close disconnects.
	Close(ctx context.Context) error
}

func (p Program) path() (string, error) {
	if p.Path != "" {
		return p.Path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own program: %w", err)
	}
	return self, nil
}

// CapstanProgram is `capstan replicate` by the given program ("" is the one that runs this), with more arguments.
func CapstanProgram(path string, more ...string) Program {
	return Program{
		Path: path,
		Args: func(p *Pair, r Route) []string {
			return append(append([]string{"replicate", "--name", r.Name}, sideArgs(p, r)...), more...)
		},
		Memory: openMemory,
	}
}

// sideArgs are the flags of the commands with a source and a target.
func sideArgs(p *Pair, r Route) []string {
	args := []string{"--source-uri", p.SourceURI(), "--target-uri", p.TargetURI()}
	for _, i := range r.Scope.Include {
		args = append(args, "--include", i)
	}
	for _, m := range r.Scope.Rename {
		args = append(args, "--rename", m.From+"="+m.To)
	}
	for _, f := range r.Scope.Filters {
		text, err := bson.MarshalExtJSON(f.Query, true, false)
		if err != nil {
			text = []byte(err.Error()) // the command says that this is no query
		}
		args = append(args, "--filter", f.Pattern+"="+strings.TrimSpace(string(text)))
	}
	return args
}
