package tailer

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
)

// elect makes m believe that the topology has a primary at addr.
func elect(m *member, addr string) {
	m.primary.Monitor(nil).TopologyDescriptionChanged(&event.TopologyDescriptionChangedEvent{
		NewDescription: event.TopologyDescription{Servers: []event.ServerDescription{{Addr: address.Address(addr), Kind: "RSPrimary"}}}})
}

// A session whose first command waits for a silent primary ends when there is another: on a replica set
// it need not have learned that from this very session.
func TestASessionThatWaitsForASilentPrimaryEndsWithANewOne(t *testing.T) {
	for name, follow := range map[string]bool{"a known replica set": true, "not known yet, or a mongos": false} {
		t.Run(name, func(t *testing.T) {
			m := &member{}
			elect(m, "old:1")
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			m.begin(end, follow)
			m.started("old:1")
			elect(m, "old:1")
			addr, _ := m.primary.Current()
			m.moved(addr)
			if ctx.Err() != nil {
				t.Fatal("it ended where it belongs")
			}
			elect(m, "new:1")
			addr, _ = m.primary.Current()
			m.moved(addr)
			if got := errors.Is(context.Cause(ctx), errMoved); got != follow {
				t.Errorf("ended %t, want %t", got, follow)
			}
		})
	}
}
