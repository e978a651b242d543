//go:build !linux

package localcluster

import (
	"context"
	"errors"
	"net"
)

// errNoNamespaces is why Config.Network is refused here.
var errNoNamespaces = errors.New("network namespaces exist on Linux only")

func inNamespace(string, func() error) error { return errNoNamespaces }
func enterNamespace(string) error            { return errNoNamespaces }
func tryNamespace(string) error              { return errNoNamespaces }
func namespaces() ([]string, error)          { return nil, nil }

func dialIn(context.Context, string, string, string) (net.Conn, error) { return nil, errNoNamespaces }

func runIn(context.Context, string, string, string, ...string) (string, error) {
	return "", errNoNamespaces
}
