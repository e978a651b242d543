//go:build !linux

package main

import "time"

// nap sleeps as exactly as Go's timers allow.
func nap(d time.Duration) { time.Sleep(d) }
