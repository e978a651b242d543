package localcluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a cluster of three with two client machines, and who is cut off from whom in it.
type world struct {
	*Cluster
	t        *testing.T
	machines []*Machine
}

// space is the namespace of a member ("m0") or of a client machine ("a").
func (w *world) space(name string) string {
	if strings.HasPrefix(name, "m") {
		return w.network().namespace(name)
	}
	return w.network().machine(name)
}

// ways dials from every member and machine to every member. Those ways for which cut holds must let
// nothing through, all others must be open.
func (w *world) ways(when string, cut func(from, to string) bool) {
	w.t.Helper()
	members := w.Members()
	var froms []string
	for _, m := range members {
		froms = append(froms, m.Name)
	}
	for _, m := range w.machines {
		froms = append(froms, m.Name())
	}
	type way struct{ from, to, addr string }
	var ways []way
	for _, from := range froms {
		for _, to := range members {
			ways = append(ways, way{from, to.Name, to.Addr})
		}
	}
	_ = each(ways, func(y way) error {
		want := cut(y.from, y.to)
		// A drop is certain, so a cut way is dialled briefly; an open one may be slow on a busy computer.
		patience := 20 * time.Second
		if want {
			patience = 300 * time.Millisecond
		}
		err := reach(w.t, spaceDialer{w.space(y.from)}, y.addr, patience)
		if want != (err != nil) {
			w.t.Errorf("%s: from %s to %s: %v; want cut %v", when, y.from, y.to, err, want)
		}
		return nil
	})
}

// whole checks that nothing is cut and that no rule is left.
func (w *world) whole(when string) {
	w.t.Helper()
	w.ways(when, func(string, string) bool { return false })
	spaces, err := w.network().spaces()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range spaces {
		if out, err := runIn(w.t.Context(), s, "", "nft", "list", "ruleset"); err != nil || strings.TrimSpace(out) != "" {
			w.t.Errorf("%s: rules left in %s: %s, %v", when, s, out, err)
		}
	}
}

// term is the election term that the primary is in.
func (w *world) term() string {
	w.t.Helper()
	p, err := w.primary(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	h, err := w.hello(w.t.Context(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	return p.Name + " " + h.ElectionID.Hex()
}

// halfOpen reports whether somebody at the given address has asked for a connection in a namespace
// and not been heard to confirm it.
func halfOpen(t *testing.T, namespace, addr string) bool {
	t.Helper()
	var b []byte
	if err := inNamespace(namespace, func() (err error) {
		b, err = os.ReadFile("/proc/thread-self/net/tcp")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var a, bb, c, d int
	if _, err := fmt.Sscanf(addr, "%d.%d.%d.%d", &a, &bb, &c, &d); err != nil {
		t.Fatal(err)
	}
	remote := fmt.Sprintf("%02X%02X%02X%02X:", d, c, bb, a)
	const synReceived = "03"
	return slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 3 && strings.HasPrefix(f[2], remote) && f[3] == synReceived
	})
}

func TestFaultsOfTheNetworkCutWhatTheySayAndNothingElse(t *testing.T) {
	needsNetwork(t)
	c := start(t, Config{Members: 3, Network: true})
	w := &world{Cluster: c, t: t, machines: []*Machine{machine(t, c, "a"), machine(t, c, "b")}}
	a := []*Machine{w.machines[0]}
	touches := func(p string) func(from, to string) bool {
		return func(from, to string) bool { return from != to && (from == p || to == p) }
	}
	for _, tc := range []struct {
		fault   string
		o       FaultOptions
		cut     func(p string) func(from, to string) bool
		elects  bool
		further func(p Member)
	}{
		{fault: "blackhole", cut: touches, elects: true},
		{fault: "link-down", cut: touches, elects: true},
		{fault: "client-cut", o: FaultOptions{Clients: a}, cut: func(p string) func(string, string) bool {
			return func(from, to string) bool { return from == "a" && to == p }
		}},
		{fault: "isolate-with-client", o: FaultOptions{Clients: a}, cut: func(p string) func(string, string) bool {
			this := func(name string) bool { return name == p || name == "a" }
			return func(from, to string) bool { return from != "b" && this(from) != this(to) }
		}, elects: true},
		{fault: "one-way-out", cut: touches, elects: true, further: func(p Member) {
			eventually(t, "a packet to the member", func() bool {
				_ = reach(t, w.machines[0].Dialer(), p.Addr, 200*time.Millisecond)
				return halfOpen(t, w.space(p.Name), w.machines[0].Addr())
			})
		}},
		{fault: "one-way-in", cut: touches, elects: true, further: func(p Member) {
			other := w.Members()[0]
			if other.Name == p.Name {
				other = w.Members()[1]
			}
			from, _, _ := strings.Cut(p.Addr, ":")
			eventually(t, "a packet from the member", func() bool {
				_ = reach(t, spaceDialer{w.space(p.Name)}, other.Addr, 200*time.Millisecond)
				return halfOpen(t, w.space(other.Name), from)
			})
		}},
	} {
		awaitHealthy(t, c)
		before := w.term()
		i := inject(t, c, tc.fault, tc.o)
		w.ways(tc.fault, tc.cut(i.Member().Name))
		if tc.further != nil {
			tc.further(i.Member())
		}
		if tc.elects {
			eventually(t, "another primary after "+tc.fault, func() bool {
				p, err := c.primary(t.Context())
				return err == nil && p.Name != i.Member().Name
			})
		}
		heal(t, i)
		w.whole(tc.fault + " healed")
		awaitHealthy(t, c)
		if after := w.term(); (after != before) != tc.elects {
			t.Errorf("%s: the primary was %s and is %s; want an election %v", tc.fault, before, after, tc.elects)
		}
	}
}
