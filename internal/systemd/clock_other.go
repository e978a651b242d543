//go:build !linux

package systemd

import "time"

// monotonic: no systemd here.
func monotonic() time.Duration { return 0 }
