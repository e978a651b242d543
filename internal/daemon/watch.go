package daemon

import (
	"context"
	"time"
)

// watchEvery is how often the routes are looked at for the service manager, or more often if that wants it.
const watchEvery = time.Second

// Manager is told how the daemon is: *systemd.Notifier.
type Manager interface {
	Ready() error
	Status(line string) error
	Watchdog() error
}

// Watch tells m how the routes are until ctx ends: ready, once, when every route has been connected or has failed; a line of
// status when that changes; and, if watchdog is not 0, that the daemon is alive, for as long as no route's loop hangs. ready is called
// once too; nil: nobody.
func (s *Supervisor) Watch(ctx context.Context, m Manager, watchdog time.Duration, ready func()) {
	every := watchEvery
	if watchdog > 0 {
		every = min(every, watchdog/3)
	}
	t := time.NewTicker(max(every, time.Millisecond))
	defer t.Stop()
	log := s.config().Logger
	tell := func(err error) {
		if err != nil {
			log.Debug().Err(err).Msg("the service manager was not reached")
		}
	}
	var line, stuck string
	for told := false; ; {
		if !told && s.Settled() {
			told = true
			tell(m.Ready())
			if ready != nil {
				ready()
			}
		}
		if l := s.Line(); l != line {
			line = l
			tell(m.Status(line))
		}
		if watchdog > 0 {
			name := s.Stuck(watchdog, time.Now())
			if name == "" {
				tell(m.Watchdog())
			} else if name != stuck {
				log.Error().Str("route", name).Dur("limit", watchdog).Msg("the route's loop hangs; the service manager will end this process")
			}
			stuck = name
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
