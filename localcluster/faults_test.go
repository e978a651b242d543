package localcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// healthy waits until every member is in service again.
func healthy(t *testing.T, c *Cluster) {
	t.Helper()
	eventually(t, "all members in service", func() bool {
		for _, m := range c.Status(t.Context()) {
			if m.Role != RolePrimary && m.Role != RoleSecondary {
				return false
			}
		}
		return true
	})
}

// write proves that the cluster accepts majority writes, however long an election takes.
func write(t *testing.T, c *Cluster) {
	t.Helper()
	eventually(t, "a majority write", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := client(t, c.URI()).Database("d").Collection("c").InsertOne(ctx, bson.D{})
		return err == nil
	})
}

func TestEveryFaultHitsTheMemberAskedForAndTheSetRecovers(t *testing.T) {
	c := start(t, Config{Members: 3})
	member := func(name string) Member {
		for _, m := range c.Members() {
			if m.Name == name {
				return m
			}
		}
		t.Fatalf("no member %s", name)
		return Member{}
	}
	do := func(what, who string, fault func(context.Context, string) (Member, error)) Member {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		m, err := fault(ctx, who)
		if err != nil {
			t.Fatalf("%s %s: %v", what, who, err)
		}
		t.Logf("%s %s (%s): %v", what, who, m.Name, time.Since(began).Round(time.Millisecond))
		return m
	}

	killed := do("kill", "primary", c.Kill)
	if killed.Running() || member(killed.Name).Running() {
		t.Errorf("%+v still runs after a kill", killed)
	}
	write(t, c)
	if m := do("start", killed.Name, c.Start); m.Addr != killed.Addr || !m.Running() {
		t.Errorf("%+v came back as %+v", killed, m)
	}
	healthy(t, c)

	frozen := do("freeze", "primary", c.Freeze)
	if !frozen.Frozen || !frozen.Running() {
		t.Errorf("%+v is not frozen", frozen)
	}
	write(t, c)
	if m := do("thaw", frozen.Name, c.Thaw); m.PID != frozen.PID {
		t.Errorf("%+v thawed as %+v", frozen, m)
	}
	eventually(t, "a thawed member", func() bool { return !member(frozen.Name).Frozen })
	healthy(t, c)

	stopped := do("stop", "secondary", c.Stop)
	if stopped.Running() {
		t.Errorf("%+v still runs after a stop", stopped)
	}
	do("start", stopped.Name, c.Start)
	healthy(t, c)

	stopped = do("stop", "primary", c.Stop)
	write(t, c)
	do("start", stopped.Name, c.Start)
	healthy(t, c)

	old := do("stepdown", "primary", c.StepDown)
	eventually(t, "another primary", func() bool {
		p, err := c.primary(t.Context())
		return err == nil && p.Name != old.Name
	})
	write(t, c)

	do("freeze", "m0", c.Freeze)
	do("freeze", "m1", c.Freeze)
	do("stop", "m1", c.Stop) // a frozen member can be stopped
	began := time.Now()
	down(t, c) // and a frozen one does not hold up the tear-down
	t.Logf("down with a frozen member: %v", time.Since(began).Round(time.Millisecond))
	if m := member("m0"); m.Running() {
		t.Errorf("%+v still runs", m)
	}
}

func TestFaultsSayWhatIsWrongWithTheirTarget(t *testing.T) {
	c := start(t, Config{})
	for _, tc := range []struct {
		who, want string
		fault     func(context.Context, string) (Member, error)
	}{
		{"m7", `"m7" is not one of m0, primary, secondary`, c.Kill},
		{"primary2", `"primary2" is not one of`, c.Freeze},
		{"secondary", "no member in that role: secondary (m0 is standalone)", c.Kill},
		{"primary", "step down m0", c.StepDown}, // a standalone cannot
		{"primary", "a stopped member is called by its name", c.Start},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := tc.fault(ctx, tc.who)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %q", tc.who, err, tc.want)
		}
	}
	if _, err := c.Kill(t.Context(), "primary"); err != nil { // the standalone's role, too
		t.Fatal(err)
	}
	if _, err := c.Kill(t.Context(), "m0"); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("killing a dead member: %v", err)
	}
	if _, err := c.Start(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	m, err := c.Start(t.Context(), "m0") // running already: nothing happens
	if err != nil || !m.Running() {
		t.Errorf("%+v, %v", m, err)
	}
	insert(t, c.URI(), 1)
}
