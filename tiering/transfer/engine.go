package transfer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"
)

// ErrStopped is why a flight ended that its engine or its owner gave up.
var ErrStopped = errors.New("transfer: stopped")

// Config sets an engine up.
type Config struct {
	Lock sync.Locker // required; the owner's
	// Workers: flights wait for Work. Without, Start begins them and Launch moves
	// them.
	// Parked flights of an engine without workers are tried again after each move.
	Workers bool
	Queue   int              // flights at once; 0 = no bound
	Share   int              // of them of one owner; 0 = no bound
	Bytes   int64            // moving at once in each lane, unless one flight takes more; 0 = no bound
	Lanes   int              // of flights with workers and a budget of their own; 0 = 1
	Turns   int              // times that a flight may be parked; 0 = no bound
	Now     func() time.Time // time.Now
	// Took is called, with the lock held, with how long a flight took that was done, from its
	// start to its end; nil = nobody wants to know.
	Took func(lane int, took time.Duration)
	// After is called, without the lock, behind what the engine has called with it.
	After func()
	// Idle is called with the lock held when a worker of lane 0 has nothing to do. It
	// may start flights; more says that it has not looked at everything.
	Idle func() (more bool)
}

// Engine moves objects between two tiers, one flight for each key.
type Engine[K comparable] struct {
	cfg Config

	flights map[K]*Flight
	owned   map[uint32]int // flights, by owner
	lanes   []lane
	parked  []*Flight
	begun   []*Flight // without workers: to be launched
	stopped error
	busy    uint64
}

// lane is the flights of one source. A source that is slow or hangs keeps its own
// workers and bytes, and none of the others'.
type lane struct {
	lines [2][]*Flight // ready: urgent, others; first in first out, those that have moved on are skipped
	bytes int64        // moving
	n     int          // flights that have not ended
	stats Stats
	work  sync.Cond
}

// New makes an engine. It takes up flights at once.
func New[K comparable](cfg Config) *Engine[K] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	e := &Engine[K]{cfg: cfg, flights: map[K]*Flight{}, owned: map[uint32]int{}, lanes: make([]lane, max(1, cfg.Lanes))}
	for i := range e.lanes {
		e.lanes[i].work.L = cfg.Lock
	}
	return e
}

// Options of a flight.
type Options struct {
	Bytes  int64
	Lane   int
	Owner  uint32  // whose share of the queue it takes
	Urgent bool    // somebody waits for it
	After  *Flight // it follows this one
}

// Find is the flight of a key, nil if there is none.
func (e *Engine[K]) Find(k K) *Flight { return e.flights[k] }

// Bytes are those that move now.
func (e *Engine[K]) Bytes() (n int64) {
	for i := range e.lanes {
		n += e.lanes[i].bytes
	}
	return n
}

// All are the flights that have not ended, in no order.
func (e *Engine[K]) All() iter.Seq2[K, *Flight] { return maps.All(e.flights) }

// Len is how many flights of a lane have not ended.
func (e *Engine[K]) Len(lane int) int { return e.lanes[lane].n }

// Room tells whether n more of an owner may start, and counts it if they may not.
func (e *Engine[K]) Room(owner uint32, n int) bool {
	fits := func(have, bound int) bool { return bound == 0 || have+n <= bound }
	if e.stopped == nil && fits(len(e.flights), e.cfg.Queue) && fits(e.owned[owner], e.cfg.Share) {
		return true
	}
	e.busy++
	return false
}

// Start begins a flight, or puts it into its line; there is none of its key, and
// Room for it. Without workers the error is why it did not begin: it has ended.
func (e *Engine[K]) Start(k K, job Job, o Options) (*Flight, error) {
	if e.flights[k] != nil {
		panic(fmt.Sprintf("transfer: a second flight of %v", k))
	}
	f := &Flight{Job: job, Bytes: o.Bytes, lane: o.Lane, urgent: o.Urgent, started: e.cfg.Now(), done: make(chan struct{})}
	f.forget = func() { e.forget(k, o.Owner) }
	e.flights[k] = f
	e.owned[o.Owner]++
	e.lanes[o.Lane].n++
	if o.After != nil {
		f.Follow(o.After)
		return f, nil
	}
	e.queue(f)
	return f, f.err
}

func (e *Engine[K]) forget(k K, owner uint32) {
	delete(e.flights, k)
	if e.owned[owner]--; e.owned[owner] == 0 {
		delete(e.owned, owner)
	}
}

// queue gives a flight its turn, or its place in a line.
func (e *Engine[K]) queue(f *Flight) {
	f.lead = nil
	if f.state != ready {
		f.to(ready)
	}
	if !e.cfg.Workers {
		e.begin(f)
		return
	}
	e.line(f)
}

func (e *Engine[K]) line(f *Flight) {
	line := e.lineOf(f)
	*line = append(*line, f)
	e.lanes[f.lane].work.Signal()
}

func (e *Engine[K]) lineOf(f *Flight) *[]*Flight {
	l := &e.lanes[f.lane]
	if f.urgent {
		return &l.lines[0]
	}
	return &l.lines[1]
}

// Urge puts a flight, and those that it follows, before those nobody waits for.
func (e *Engine[K]) Urge(f *Flight) {
	for ; f != nil; f = f.lead {
		if f.urgent {
			continue
		}
		f.urgent = true
		if f.state == ready && e.cfg.Workers {
			e.line(f) // its place in the other line is skipped
		}
	}
}

// begin gives a flight its turn and tells whether it moves now.
func (e *Engine[K]) begin(f *Flight) bool {
	err := f.Job.Begin(f)
	switch {
	case err == nil:
		f.to(moving)
		e.lanes[f.lane].bytes += f.Bytes
		if !e.cfg.Workers {
			e.begun = append(e.begun, f)
		}
		return true
	case errors.Is(err, ErrFollow):
		f.to(following)
	case e.cfg.Workers && errors.Is(err, ErrAgain):
		line := e.lineOf(f)
		*line = slices.Insert(*line, 0, f)
	case errors.Is(err, ErrPark) && e.stopped == nil && (e.cfg.Turns == 0 || f.turns < e.cfg.Turns):
		f.turns++
		f.to(parking)
		e.parked = append(e.parked, f)
	default:
		e.end(f, err)
	}
	return false
}

// kickRows bounds what one Kick tries, since it is called with the lock held.
const kickRows = 16

// Kick tries parked flights again, in order, until one is parked again or it has
// tried enough; the others have their turn with the next.
func (e *Engine[K]) Kick() {
	for n := min(len(e.parked), kickRows); n > 0 && len(e.parked) > 0; n-- {
		f := e.parked[0]
		e.parked = e.parked[1:]
		if f.state != parking {
			continue
		}
		others := len(e.parked)
		e.queue(f)
		if len(e.parked) > others { // it, or what it follows, went to the end
			last := e.parked[others]
			copy(e.parked[1:], e.parked[:others])
			e.parked[0] = last
			return
		}
	}
}

// Parked is how many flights wait for a Kick.
func (e *Engine[K]) Parked() int { return len(e.parked) }

// Cancel ends a flight, and those that follow it. Its job is released once its
// bytes have come to rest.
func (e *Engine[K]) Cancel(f *Flight, err error) {
	if f.state == ended {
		return
	}
	if f.state == parking {
		e.parked = slices.DeleteFunc(e.parked, func(g *Flight) bool { return g == f })
	}
	e.end(f, err)
}

// end tells those who wait for a flight, or follow it, how it has ended.
func (e *Engine[K]) end(f *Flight, err error) {
	if f.moves > 0 {
		err = nil
	}
	f.err = err
	f.to(ended)
	f.forget()
	e.lanes[f.lane].n--
	how := OutcomeOf(err)
	e.lanes[f.lane].stats.Ended[how]++
	if how == Done && e.cfg.Took != nil {
		e.cfg.Took(f.lane, max(0, e.cfg.Now().Sub(f.started)))
	}
	f.lead = nil
	f.Job.End(f, err)
	for _, g := range slices.Clone(f.Followers()) {
		if g.state == following && g.lead == f {
			e.follow(g, err)
		}
	}
	f.followers = nil
	if f.cancel != nil {
		f.cancel()
	}
	close(f.done)
}

// follow gives a flight its turn behind one that has ended.
func (e *Engine[K]) follow(f *Flight, err error) {
	if err != nil {
		e.end(f, err)
		return
	}
	e.queue(f)
}

// Work carries out flights of a lane until ctx ends. Several may run at once.
func (e *Engine[K]) Work(ctx context.Context, lane int) {
	wake := context.AfterFunc(ctx, func() {
		e.cfg.Lock.Lock()
		defer e.cfg.Lock.Unlock()
		e.lanes[lane].work.Broadcast()
	})
	defer wake()
	for e.carry(ctx, lane, true) {
	}
}

// carry takes a flight, and waits for one if it is to, and moves it if it begins. It
// tells whether there was one.
func (e *Engine[K]) carry(ctx context.Context, lane int, wait bool) bool {
	move, cancel := context.WithCancel(ctx)
	defer cancel()
	f, begun := e.take(ctx, cancel, lane, wait)
	e.after()
	if begun {
		f.Job.Move(move, f, func(err error) { e.finish(f, err) })
	}
	return f != nil
}

// take gives the next flight its turn. ctx is that which wakes workers when it ends,
// and none derived from it, which may end after the call to wake.
func (e *Engine[K]) take(ctx context.Context, cancel context.CancelFunc, lane int, wait bool) (f *Flight, begun bool) {
	e.cfg.Lock.Lock()
	defer e.cfg.Lock.Unlock()
	for ctx.Err() == nil {
		f, again := e.pick(lane)
		switch {
		case f != nil:
			f.cancel = cancel
			e.lanes[lane].work.Signal() // there may be more
			return f, e.begin(f)
		case again: // once others had the lock
			e.cfg.Lock.Unlock()
			e.cfg.Lock.Lock()
		case !wait:
			return nil, false
		default:
			e.lanes[lane].work.Wait()
		}
	}
	return nil, false
}

// Try gives one flight of a lane that is ready its turn, and tells whether there was one.
func (e *Engine[K]) Try(ctx context.Context, lane int) bool { return e.carry(ctx, lane, false) }

// pick takes a flight out of its line: urgent ones first, none while it would exceed
// the bound on bytes. again says that Idle has more to look at.
func (e *Engine[K]) pick(lane int) (f *Flight, again bool) {
	if e.stopped != nil {
		return nil, false
	}
	l := &e.lanes[lane]
	line := l.front()
	if line == nil && lane == 0 && e.cfg.Idle != nil {
		again = e.cfg.Idle()
		line = l.front()
	}
	if line == nil {
		return nil, again
	}
	f = (*line)[0]
	if e.cfg.Bytes > 0 && l.bytes > 0 && l.bytes+f.Bytes > e.cfg.Bytes {
		return nil, false // until a flight has moved
	}
	*line = (*line)[1:]
	return f, false
}

// front is the line whose first flight is the next one; what is not in its place
// there any more is dropped.
func (l *lane) front() *[]*Flight {
	for i := range l.lines {
		line := &l.lines[i]
		for len(*line) > 0 {
			if f := (*line)[0]; f.state == ready && f.urgent == (i == 0) {
				return line
			}
			(*line)[0] = nil
			*line = (*line)[1:]
		}
	}
	return nil
}

// Peek is the flight that a worker of lane 0 would begin next, if one is ready.
func (e *Engine[K]) Peek() *Flight {
	if line := e.lanes[0].front(); line != nil {
		return (*line)[0]
	}
	return nil
}

// Waiting tells whether a flight of lane 0 that nobody waits for is ready.
func (e *Engine[K]) Waiting() bool {
	return slices.ContainsFunc(e.lanes[0].lines[1], func(f *Flight) bool { return f.state == ready && !f.urgent })
}

// Wake has a worker look for something to do: Idle has something new to look at.
func (e *Engine[K]) Wake() { e.lanes[0].work.Signal() }

// Launch moves what has begun without workers. It is called without the lock, by
// whoever has called what may begin flights.
func (e *Engine[K]) Launch() {
	e.cfg.Lock.Lock()
	begun := e.begun
	e.begun = nil
	e.cfg.Lock.Unlock()
	for _, f := range begun {
		f.Job.Move(context.Background(), f, func(err error) { e.finish(f, err) })
	}
	e.after()
}

func (e *Engine[K]) after() {
	if e.cfg.After != nil {
		e.cfg.After()
	}
}

// finish ends a move.
func (e *Engine[K]) finish(f *Flight, err error) {
	e.cfg.Lock.Lock()
	e.lanes[f.lane].bytes -= f.Bytes
	again := false
	if f.state != ended && err == nil {
		if again, err = f.Job.Landed(f); err == nil {
			f.moves++
		}
	}
	if f.state != ended && !again {
		e.end(f, err)
	}
	f.Job.Release(f)
	if again {
		e.queue(f)
	}
	e.lanes[f.lane].work.Signal() // the bound on bytes may have held one up
	if !e.cfg.Workers {
		e.Kick()
	}
	e.cfg.Lock.Unlock()
	if e.cfg.Workers {
		e.after()
	} else {
		e.Launch()
	}
}

// Stop ends the flights that have not ended, with err; none starts until Resume.
func (e *Engine[K]) Stop(err error) {
	e.stopped = err
	for len(e.flights) > 0 {
		for _, f := range e.flights {
			e.Cancel(f, err)
			break // which may have ended others
		}
	}
	for i := range e.lanes {
		e.lanes[i].lines = [2][]*Flight{}
		e.lanes[i].work.Broadcast()
	}
}

// Resume ends that an engine is stopped.
func (e *Engine[K]) Resume() { e.stopped = nil }

// Stats answers what was counted of a lane; Busy is of all of them.
func (e *Engine[K]) Stats(lane int) Stats {
	s := e.lanes[lane].stats
	s.Busy = e.busy
	return s
}
