package localcluster

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
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
	t.Parallel()
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
		{fault: "blackhole-secondary", cut: touches},
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

// received counts how many of n datagrams arrive that are sent from one namespace to another.
func received(t *testing.T, from, to, addr string, n int) int {
	t.Helper()
	var server net.PacketConn
	if err := inNamespace(to, func() (err error) {
		server, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp", addr+":9")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := (spaceDialer{from}).DialContext(t.Context(), "udp", addr+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, buf := 0, make([]byte, 8)
	for sent := range n {
		if _, err := client.Write([]byte("datagram")); err != nil {
			t.Fatal(err)
		}
		if sent%64 == 63 { // the kernel keeps some hundred for a reader
			got += drain(server, buf, time.Millisecond)
		}
	}
	return got + drain(server, buf, time.Second)
}

func drain(conn net.PacketConn, buf []byte, patience time.Duration) (n int) {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, _, err := conn.ReadFrom(buf); err != nil {
			return n
		}
		n++
	}
}

func TestPacketsAreLostAndDelayedAndTheDataStayWhole(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	c := start(t, Config{Network: true})
	w := &world{Cluster: c, t: t, machines: []*Machine{machine(t, c, "a"), machine(t, c, "b")}}
	m, a := c.Members()[0], w.machines[0]
	host, _, _ := strings.Cut(m.Addr, ":")

	i := inject(t, c, "loss", FaultOptions{Loss: 0.3})
	// 1,000 draws with 0.3 lose 300, give or take 14.5: six of these are seen once in 500 million times.
	for name, got := range map[string]int{
		"to the member":   received(t, a.namespace, w.space(m.Name), host, 1000),
		"from the member": received(t, w.space(m.Name), a.namespace, a.Addr(), 1000),
	} {
		if lost := 1000 - got; lost < 213 || lost > 387 {
			t.Errorf("%d of 1000 datagrams %s are lost, want 300", lost, name)
		}
	}
	if got := received(t, a.namespace, w.machines[1].namespace, w.machines[1].Addr(), 100); got != 100 {
		t.Errorf("%d of 100 datagrams arrive between two machines that the fault is not about", got)
	}
	heal(t, i)
	w.whole("loss healed")
	if got := received(t, a.namespace, w.space(m.Name), host, 100); got != 100 {
		t.Errorf("%d of 100 datagrams arrive after loss was healed", got)
	}

	const delay = 60 * time.Millisecond
	i = inject(t, c, "delay", FaultOptions{Delay: delay})
	for range 3 {
		began := time.Now()
		if err := reach(t, a.Dialer(), m.Addr, 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*delay {
			t.Errorf("a connection was made in %v, which is less than twice %v", took, delay)
		}
	}
	// Large documents go in segments that the kernel splits and sums up late.
	big := make([]byte, 4<<20)
	for n := range big {
		big[n] = byte(n * n >> 7)
	}
	coll := clientVia(t, c, a.Dialer()).Database("d").Collection("big")
	if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: big}}); err != nil {
		t.Fatal(err)
	}
	var back struct{ B []byte }
	if err := coll.FindOne(t.Context(), bson.D{}).Decode(&back); err != nil || !bytes.Equal(back.B, big) {
		t.Errorf("%d bytes came back, %v", len(back.B), err)
	}
	heal(t, i)
	w.whole("delay healed")
	out, err := runIn(t.Context(), c.network().hub(), "", "ip", "-o", "link")
	if err != nil || strings.Contains(out, "near") || strings.Contains(out, "NOARP") {
		t.Errorf("links after a delay: %s, %v", out, err)
	}
	for n := 0; ; n++ { // slow once on a busy computer, but not always
		began := time.Now()
		if err := reach(t, a.Dialer(), m.Addr, 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*delay {
			break
		} else if n == 100 {
			t.Fatalf("still delayed: %v", took)
		}
	}
}
