package main

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// demoTick is how often a line of progress is written where there is no terminal.
const demoTick = 5 * time.Second

// demoProgress shows how a load goes on: bars on a terminal, a line every demoTick elsewhere.
type demoProgress struct {
	env  *environ
	load *demoLoad
	bars *mpb.Progress
	all  []*mpb.Bar
	stop chan struct{}
	done chan struct{}
}

// demoRows are the bars and what they count.
func demoRows(l *demoLoad) []struct {
	name string
	now  func() int64
} {
	return []struct {
		name string
		now  func() int64
	}{{"sent", l.sent.Load}, {"acknowledged", l.acked.Load}, {"delivered", l.delivered.Load}}
}

// watchDemo starts to show l. The caller calls end.
func watchDemo(env *environ, l *demoLoad) *demoProgress {
	p := &demoProgress{env: env, load: l, stop: make(chan struct{}), done: make(chan struct{})}
	tick := demoTick
	if env.animate() {
		tick = 100 * time.Millisecond
		p.bars = mpb.New(mpb.WithOutput(env.stderr.raw()), mpb.WithAutoRefresh(), mpb.WithWidth(50), mpb.WithRefreshRate(tick))
		for _, row := range demoRows(l) {
			p.all = append(p.all, p.bars.AddBar(int64(l.count), demoBar(row.name, env.color)...))
		}
	}
	if p.bars != nil {
		env.stderr.redirect(p.bars) // notes and logs go above the bars, not into them
	}
	go p.show(tick)
	return p
}

func demoBar(name string, color bool) []mpb.BarOption {
	count := func(s decor.Statistics) string {
		return fmt.Sprintf(" %9s of %s", humanize.Comma(s.Current), humanize.Comma(s.Total))
	}
	label := fmt.Sprintf("      %-13s", name)
	if color {
		label = "\x1b[2m" + label + "\x1b[0m"
	}
	return []mpb.BarOption{mpb.PrependDecorators(decor.Name(label)), mpb.AppendDecorators(decor.Any(count))}
}

func (p *demoProgress) show(every time.Duration) {
	defer close(p.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		if p.bars == nil {
			p.env.note("      sent %9s   acknowledged %9s   delivered %9s", humanize.Comma(p.load.sent.Load()),
				humanize.Comma(p.load.acked.Load()), humanize.Comma(p.load.delivered.Load()))
			continue
		}
		p.update()
	}
}

func (p *demoProgress) update() {
	for i, row := range demoRows(p.load) {
		p.all[i].SetCurrent(row.now())
	}
}

// end takes the bars to their last state and waits until nothing more is written.
func (p *demoProgress) end() {
	close(p.stop)
	<-p.done
	if p.bars == nil {
		return
	}
	p.update()
	for _, b := range p.all {
		b.Abort(false) // does nothing to a bar that is full
	}
	p.bars.Wait()
	p.env.stderr.redirect(nil)
}
