package cuda

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// lanes is a bounded pool of lanes. A lane is created when it is first needed, and is kept.
type lanes struct {
	dev   *device
	slots chan struct{} // one token per lane in use
	made  atomic.Int64

	mu struct {
		sync.Mutex
		idle   []*lane
		closed bool
	}
}

func newLanes(d *device, n int) *lanes { return &lanes{dev: d, slots: make(chan struct{}, n)} }

// lane is a stream with the working memory of one operation. It belongs to one operation at
// a time. Between two operations it has no work in flight.
type lane struct {
	dev    *device
	stream driver.Stream
	done   driver.Event    // recorded after all work
	marks  [2]driver.Event // recorded after each of the two pieces in flight
	busy   bool            // something was enqueued since the last wait

	tables  tables
	staging staging
	scratch scratch
}

// wordBytes is the size of the words that package order polls and writes. Reads and writes
// of words have their own lanes. In a queue behind long copies, a word would be late,
// and clients would get their memory back late just when the load is high. There are
// wordLanes lanes, so that one word can be requested while another is in flight (a guess).
const (
	wordBytes = 8
	wordLanes = 2
)

// lanesFor returns the lanes for a read or write of n bytes by the host: the lanes for
// words if n is wordBytes.
func (d *device) lanesFor(n int) *lanes {
	if n == wordBytes {
		return d.words
	}
	return d.lanes
}

// The method on of a device runs f on an ordinary lane: see the method on of lanes.
func (d *device) on(ctx context.Context, f func(l *lane) error) error { return d.lanes.on(ctx, f) }

// The method on runs f on a lane, with the thread locked and the device's context current.
// It returns when all work that f enqueued has ended. While all lanes are in use, it waits
// for one until ctx ends. After f has started, only f decides whether to stop when ctx
// ends.
func (p *lanes) on(ctx context.Context, f func(l *lane) error) error {
	d := p.dev
	if err := d.gone(); err != nil {
		return err
	}
	l, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer p.give(l)
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	l.tables.used = 0
	if err = l.open(); err == nil {
		err = f(l)
	}
	// Whatever happened, the device must have finished with the memory.
	if e := l.drain(); err == nil {
		err = e
	}
	l.scratch.reset(l)
	return d.fail(err)
}

// take returns a free lane. It waits for one until ctx ends.
func (p *lanes) take(ctx context.Context) (*lane, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	default:
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		<-p.slots
		return nil, fmt.Errorf("cuda: the device is closed: %w", gpuipc.ErrInvalid)
	}
	if k := len(p.mu.idle) - 1; k >= 0 {
		l := p.mu.idle[k]
		p.mu.idle = p.mu.idle[:k]
		return l, nil
	}
	p.made.Add(1)
	return &lane{dev: p.dev}, nil
}

func (p *lanes) give(l *lane) {
	p.mu.Lock()
	p.mu.idle = append(p.mu.idle, l)
	p.mu.Unlock()
	<-p.slots
}

// close waits for the lanes in use and closes all lanes. It returns false if they were
// closed before.
func (p *lanes) close() bool {
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
	p.mu.Lock()
	idle, closed := p.mu.idle, p.mu.closed
	p.mu.idle, p.mu.closed = nil, true
	p.mu.Unlock()
	for range cap(p.slots) {
		<-p.slots
	}
	p.dev.release(func() {
		for _, l := range idle {
			l.close()
		}
	})
	return !closed
}

// open creates what the lane lacks. That is everything at the first use, and the missing
// parts after a failure.
func (l *lane) open() (err error) {
	api := l.dev.api
	if l.stream == 0 {
		if l.stream, err = api.StreamCreate(); err != nil {
			return err
		}
	}
	for _, e := range []*driver.Event{&l.done, &l.marks[0], &l.marks[1]} {
		if *e == 0 {
			if *e, err = api.EventCreate(driver.EventBlocking | driver.EventNoTiming); err != nil {
				return err
			}
		}
	}
	return nil
}

// close releases everything. It ignores errors: on a lost device the driver refuses to
// release anything.
func (l *lane) close() {
	api := l.dev.api
	l.tables.close(l.dev)
	l.staging.close(l.dev)
	l.scratch.close(l.dev)
	for _, e := range []driver.Event{l.done, l.marks[0], l.marks[1]} {
		if e != 0 {
			_ = api.EventDestroy(e)
		}
	}
	if l.stream != 0 {
		_ = api.StreamDestroy(l.stream)
	}
}
