package main

import (
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// plainEvery is how often progress is said where no bar can be drawn.
const plainEvery = 5 * time.Second

// progress shows how far a long run is: a bar on a terminal, else a plain line every few seconds.
type progress struct {
	stop chan struct{}
	wg   sync.WaitGroup
	bar  *mpb.Bar
	all  *mpb.Progress
	env  *environ
}

// showProgress starts to show a run. now returns how much is done, in the unit of total; text says the
// facts in words. total 0: not known. end it before the summary.
func showProgress(env *environ, total int64, now func() int64, text func() string) *progress {
	p := &progress{stop: make(chan struct{}), env: env}
	every := plainEvery
	if env.animate() {
		every = 100 * time.Millisecond
		p.all = mpb.New(mpb.WithOutput(env.stderr.raw()), mpb.WithAutoRefresh(), mpb.WithWidth(40))
		facts := decor.Any(func(decor.Statistics) string { return text() })
		if total > 0 {
			p.bar = p.all.AddBar(total, mpb.PrependDecorators(decor.Percentage(decor.WCSyncSpace)), mpb.AppendDecorators(facts), mpb.BarRemoveOnComplete())
		} else {
			p.bar = p.all.New(0, mpb.SpinnerStyle().PositionLeft(), mpb.BarWidth(2), mpb.AppendDecorators(facts), mpb.BarRemoveOnComplete())
		}
		env.stderr.redirect(p.all) // notes and logs go above the bar, not into it
	}
	p.wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-p.stop:
				return
			}
			if p.bar != nil {
				p.bar.SetCurrent(now())
			} else {
				env.note("%s", text())
			}
		}
	})
	return p
}

// end removes the bar. It waits until nothing of it will be drawn any more.
func (p *progress) end() {
	close(p.stop)
	p.wg.Wait()
	if p.bar != nil {
		p.bar.Abort(true)
		p.all.Wait()
		p.env.stderr.redirect(nil)
	}
}
