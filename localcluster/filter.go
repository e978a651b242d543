package localcluster

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
)

// filter drops packets in one namespace. It is a table of its own, so several faults do not disturb
// each other, and deleting the table heals.
type filter struct {
	namespace string
	in, out   []string // what to drop, in the words of nft
}

// tablePrefix begins the name of each of our tables.
const tablePrefix = "capstan_"

// rules returns the program for nft. What passes over the loopback interface is no network: a member
// that is cut off still talks to itself.
func (f filter) rules(table string) string {
	var b strings.Builder
	chain := func(name, hook, lo string, drops []string) {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority -300; policy accept;\n\t\t%s \"lo\" accept\n", name, hook, lo)
		for _, d := range drops {
			fmt.Fprintf(&b, "\t\t%s drop\n", d)
		}
		b.WriteString("\t}\n")
	}
	fmt.Fprintf(&b, "table inet %s {\n", table)
	chain("in", "input", "iifname", f.in)
	chain("out", "output", "oifname", f.out)
	b.WriteString("}\n")
	return b.String()
}

// cut puts filters in force, all at once, and leaves their removal to Heal.
func (i *Injection) cut(ctx context.Context, filters ...filter) error {
	table := tablePrefix + randomHex(4)
	i.undoes(func(ctx context.Context) error {
		return each(filters, func(f filter) error {
			// Adding what is there does nothing, so that this deletes a table that may be missing.
			return nft(ctx, f.namespace, fmt.Sprintf("add table inet %s\ndelete table inet %s\n", table, table))
		})
	})
	return i.takes(func() error {
		return each(filters, func(f filter) error { return nft(ctx, f.namespace, f.rules(table)) })
	})
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
