package replication

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// standIn is the replicator as a command, without the command.
func standIn(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer stop()
	if err := standInRun(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type list []string

func (l *list) String() string     { return fmt.Sprint(*l) }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func standInRun(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("replicate", flag.ContinueOnError)
	var include, rename, filter list
	route, source, target, until := f.String("route", "", ""), f.String("source-uri", "", ""), f.String("target-uri", "", ""), f.String("until", "", "")
	f.Var(&include, "include", "")
	f.Var(&rename, "rename", "")
	f.Var(&filter, "filter", "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	c := scope.Config{Include: include}
	for _, r := range rename {
		from, to, _ := strings.Cut(r, "=")
		c.Rename = append(c.Rename, scope.Rename{From: from, To: to})
	}
	for _, one := range filter {
		ns, text, _ := strings.Cut(one, "=")
		var query bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(text), true, &query); err != nil {
			return err
		}
		c.Filters = append(c.Filters, scope.Filter{Pattern: ns, Query: query})
	}
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	from, err := mongodb.NewSource(options.Client().ApplyURI(*source), mongodb.SourceConfig{Logger: log})
	if err != nil {
		return err
	}
	to, err := mongodb.NewTarget(options.Client().ApplyURI(*target), mongodb.TargetConfig{})
	if err != nil {
		return err
	}
	store, err := mongodb.NewStore(to, mongodb.StoreConfig{})
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	link, err := replicator.New(*route, from, to, store, mongodb.NewLetters(to), replicator.Config{Scope: c, Until: replicator.Until(*until), Logger: log,
		Owner: fmt.Sprintf("%s pid %d", host, os.Getpid())})
	if err != nil {
		return err
	}
	err = link.Run(ctx)
	return errors.Join(err, from.Close(context.WithoutCancel(ctx)), to.Close(context.WithoutCancel(ctx)))
}
