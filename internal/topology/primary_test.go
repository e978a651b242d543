package topology_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"

	"github.com/seed-12ef14e5/capstan/internal/topology"
)

func description(servers ...string) *event.TopologyDescriptionChangedEvent {
	e := &event.TopologyDescriptionChangedEvent{}
	for i := 0; i < len(servers); i += 2 {
		e.NewDescription.Servers = append(e.NewDescription.Servers,
			event.ServerDescription{Kind: servers[i], Addr: address.Address(servers[i+1])})
	}
	return e
}

func TestAChangeOfPrimaryWakesWhoWaits(t *testing.T) {
	var p topology.Primary
	var handedOn int
	m := p.Monitor(&event.ServerMonitor{TopologyDescriptionChanged: func(*event.TopologyDescriptionChangedEvent) { handedOn++ }})

	addr, changed := p.Current()
	if addr != "" {
		t.Fatalf("a primary is known before any event: %q", addr)
	}
	steps := []struct {
		servers []string
		want    string
		wakes   bool
	}{
		{[]string{"Unknown", "a:1", "Unknown", "b:1"}, "", false},
		{[]string{"RSPrimary", "a:1", "RSSecondary", "b:1"}, "a:1", true},
		{[]string{"RSPrimary", "a:1", "RSSecondary", "b:1", "RSSecondary", "c:1"}, "a:1", false},
		{[]string{"RSSecondary", "a:1", "RSSecondary", "b:1"}, "", true},
		{[]string{"RSSecondary", "a:1", "RSPrimary", "b:1"}, "b:1", true},
	}
	for i, step := range steps {
		m.TopologyDescriptionChanged(description(step.servers...))
		woken := false
		select {
		case <-changed:
			woken = true
		default:
		}
		if woken != step.wakes {
			t.Errorf("step %d: woken %v, want %v", i, woken, step.wakes)
		}
		if addr, changed = p.Current(); addr != step.want {
			t.Errorf("step %d: primary %q, want %q", i, addr, step.want)
		}
	}
	if handedOn != len(steps) {
		t.Errorf("%d of %d events handed on", handedOn, len(steps))
	}
}

func TestAStandaloneServerTakesWrites(t *testing.T) {
	var p topology.Primary
	p.Monitor(nil).TopologyDescriptionChanged(description("Standalone", "a:1"))
	if addr, _ := p.Current(); addr != "a:1" {
		t.Errorf("got %q", addr)
	}
}

func TestAWatcherIsCalledWithEveryChangeUntilItStops(t *testing.T) {
	var p topology.Primary
	m := p.Monitor(nil)
	var seen, other []string
	stop := p.Watch(func(addr string) { seen = append(seen, addr) })
	defer p.Watch(func(addr string) { other = append(other, addr) })()
	m.TopologyDescriptionChanged(description("RSPrimary", "a:1"))
	m.TopologyDescriptionChanged(description("RSPrimary", "a:1", "RSSecondary", "b:1"))
	m.TopologyDescriptionChanged(description("RSSecondary", "a:1"))
	stop()
	m.TopologyDescriptionChanged(description("RSPrimary", "b:1"))
	stop() // again: nothing
	if want := []string{"", "a:1", ""}; !slices.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
	if want := []string{"", "a:1", "", "b:1"}; !slices.Equal(other, want) {
		t.Errorf("the other one saw %q, want %q", other, want)
	}
}
