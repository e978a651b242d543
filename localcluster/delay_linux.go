package localcluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// delayQueue bounds the frames that are on their way in one direction; what does not fit is dropped,
	// as by any router.
	delayQueue = 16384
	// delayBuffer is what the kernel may keep for us while we are not scheduled.
	delayBuffer = 16 << 20
	// maxFrame is the longest that the kernel hands over in one piece: 64 kB of a segment that it would
	// split later, and headers.
	maxFrame = 66 << 10
)

// delayer stands between a member and the bridge and holds every frame for a while. The kernel has a
// scheduler for that, netem, but not in every build, and it could not be relied on; this one needs
// packet sockets only. The frames go with the kernel's own note on their checksum and segmentation,
// so neither has to be switched off.
type delayer struct {
	member, bridge *os.File // packet sockets on the links towards both
	delay          time.Duration
}

// beginDelay puts a delayer between the member's link and the bridge. In the hub, the member's link
// leaves the bridge, and one end of a new pair of links takes its place.
func (c *Cluster) beginDelay(ctx context.Context, i *Injection) error {
	hub, name := c.network().hub(), i.member.Name
	near, far := name+"-near", name+"-far"
	run := func(ctx context.Context, lines string) error {
		_, err := runIn(ctx, hub, lines, "ip", "-batch", "-")
		return err
	}
	// Without ARP the hub itself does not answer on links that are not on the bridge.
	i.undoes(func(ctx context.Context) error { return c.network().rejoin(ctx, name) })
	err := run(ctx, fmt.Sprintf("link add %s arp off type veth peer name %s\nlink set %s up\nlink set %s up\n", near, far, near, far))
	if err != nil {
		return err
	}
	d := &delayer{delay: i.o.Delay}
	err = i.takes(func() error {
		err := run(ctx, fmt.Sprintf("link set %s nomaster\nlink set %s arp off\nlink set %s master %s\n", name, name, far, bridge))
		if err != nil {
			return err
		}
		return inNamespace(hub, func() error { return d.open(name, near) })
	})
	if err == nil {
		err = i.steps(ctx, d.run)
	}
	if err != nil {
		d.close()
	}
	return err
}

func (d *delayer) open(member, bridge string) (err error) {
	if d.member, err = packetSocket(member); err != nil {
		return err
	}
	d.bridge, err = packetSocket(bridge)
	return err
}

func (d *delayer) close() {
	for _, f := range []*os.File{d.member, d.bridge} {
		if f != nil {
			_ = f.Close() // nothing to lose: frames in flight are lost anyway
		}
	}
}

// run forwards until ctx ends.
func (d *delayer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, d.close) // unblocks reads and writes
	defer stop()
	g.Go(func() error { return d.forward(ctx, d.member, d.bridge) })
	g.Go(func() error { return d.forward(ctx, d.bridge, d.member) })
	return g.Wait()
}

// frame is one piece of data with the time at which it is due.
type frame struct {
	due  time.Time
	data []byte
}

func (d *delayer) forward(ctx context.Context, from, to *os.File) error {
	queue := make(chan frame, delayQueue)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		buf := make([]byte, maxFrame)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return fmt.Errorf("read frame: %w", err)
			}
			select {
			case queue <- frame{time.Now().Add(d.delay), append([]byte(nil), buf[:n]...)}:
			default: // full
			}
		}
	})
	g.Go(func() error {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case f := <-queue:
				timer.Reset(time.Until(f.due))
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-timer.C:
				}
				// One frame may be refused (no buffer, a link that is down); that is a lost frame.
				if _, err := to.Write(f.data); errors.Is(err, os.ErrClosed) {
					return fmt.Errorf("write frame: %w", err)
				}
			}
		}
	})
	return g.Wait()
}

// packetSocket opens a socket for whole frames that arrive on a link, and for sending some.
func packetSocket(link string) (f *os.File, err error) {
	iface, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	// Protocol 0: nothing arrives before it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	for _, step := range []func() error{
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, delayBuffer) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, delayBuffer) },
		func() error { return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("set up packet socket: %w", err), unix.Close(fd))
		}
	}
	return os.NewFile(uintptr(fd), link), nil
}
