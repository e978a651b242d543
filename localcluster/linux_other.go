//go:build !linux

package localcluster

import (
	"context"
	"errors"
)

// errLinuxOnly is never seen: a cluster with a network or disks of its own cannot be started here.
var errLinuxOnly = errors.New("on Linux only")

func mountedDisks() ([]string, error) { return nil, nil }
func mountDisk(string, int) error     { return errLinuxOnly }
func unmountDisk(string) error        { return nil }

func (c *Cluster) beginDelay(context.Context, *Injection) error    { return errLinuxOnly }
func (c *Cluster) beginDiskFull(context.Context, *Injection) error { return errLinuxOnly }
