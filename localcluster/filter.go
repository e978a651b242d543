package localcluster

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
)

// table is a table of nft in one namespace. Each fault has tables of its own, so that several do not
// disturb each other, and to delete them heals.
type table struct {
	namespace, family, body string
}

// tablePrefix begins the name of each of our tables.
const tablePrefix = "capstan_"

// filter returns a table that drops what the conditions, in the words of nft, are true of. What passes
// over the loopback interface is no network: a member that is cut off still talks to itself.
func filter(namespace string, in, out []string) table {
	var b strings.Builder
	chain := func(hook, lo string, drops []string) {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority -300; policy accept;\n\t\t%s \"lo\" accept\n", hook, hook, lo)
		for _, d := range drops {
			fmt.Fprintf(&b, "\t\t%s drop\n", d)
		}
		b.WriteString("\t}\n")
	}
	chain("input", "iifname", in)
	chain("output", "oifname", out)
	return table{namespace: namespace, family: "inet", body: b.String()}
}

// tables are what one fault puts in force, under one name.
type tables struct {
	name string
	list []table
}

func newTables(list ...table) tables { return tables{name: tablePrefix + randomHex(4), list: list} }

func (ts tables) install(ctx context.Context) error {
	return each(ts.list, func(t table) error {
		return nft(ctx, t.namespace, ts.program(t))
	})
}

func (ts tables) program(t table) string {
	return fmt.Sprintf("table %s %s {\n%s}\n", t.family, ts.name, t.body)
}

// remove is idempotent: to add what is there does nothing, so a missing table can be deleted as well.
func (ts tables) remove(ctx context.Context) error {
	return each(ts.list, func(t table) error {
		return nft(ctx, t.namespace, fmt.Sprintf("add table %s %s\ndelete table %s %s\n", t.family, ts.name, t.family, ts.name))
	})
}

// cut puts tables in force, all at once, and leaves their removal to Heal.
func (i *Injection) cut(ctx context.Context, list ...table) (tables, error) {
	ts := newTables(list...)
	i.undoes(ts.remove)
	return ts, i.takes(func() error { return ts.install(ctx) })
}

// nft runs a program of nft in a namespace; either all of it happens or nothing.
func nft(ctx context.Context, namespace, program string) error {
	_, err := runIn(ctx, namespace, program, "nft", "-f", "-")
	return err
}

// each does something to all of list at once.
func each[T any](list []T, do func(T) error) error {
	var g errgroup.Group
	for _, e := range list {
		g.Go(func() error { return do(e) })
	}
	return g.Wait()
}
