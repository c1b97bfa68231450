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

// ErrStopped is the error of a flight that its engine or its owner gave up.
var ErrStopped = errors.New("transfer: stopped")

// Config configures an engine.
type Config struct {
	Lock sync.Locker // required; the owner's lock
	// Workers says that flights wait for a goroutine in Work. Without it Start begins
	// flights, Launch moves them, and parked flights are tried again after each move.
	Workers bool
	Queue   int              // maximum number of flights; 0 = no bound
	Share   int              // maximum number of flights of one owner; 0 = no bound
	Bytes   int64            // maximum bytes being moved in a lane, more only for a single larger flight; 0 = no bound
	Lanes   int              // groups of flights with separate workers and budgets; 0 = 1
	Turns   int              // how often a flight may be parked; 0 = no bound
	Now     func() time.Time // default time.Now
	// Took is called, with the lock held, with the time of each successful flight from
	// its start to its end; nil = no listener.
	Took func(lane int, took time.Duration)
	// After is called without the lock, each time after the engine has called jobs with
	// the lock held.
	After func()
	// Idle is called with the lock held when a worker of lane 0 has nothing to do. It may
	// start flights. The result is true if Idle should be called again.
	Idle func() (more bool)
}

// Engine moves objects between two tiers, one flight for each key.
type Engine[K comparable] struct {
	cfg Config

	flights map[K]*Flight
	owned   map[uint32]int // number of flights by owner
	lanes   []lane
	parked  []*Flight
	begun   []*Flight // without workers: flights to be launched
	stopped error
	busy    uint64
}

// lane has the flights of one source. A slow or hung source occupies only its own workers
// and bytes.
type lane struct {
	lines [2][]*Flight // ready flights in order: urgent ones, others; entries that are no longer ready are skipped
	bytes int64        // bytes being moved
	n     int          // flights that have not ended
	stats Stats
	work  sync.Cond
}

// New returns an engine, which accepts flights at once.
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

// Options are the options of a flight.
type Options struct {
	Bytes  int64
	Lane   int
	Owner  uint32  // whose share of the queue it uses
	Urgent bool    // a caller waits for it
	After  *Flight // flight that must end first; nil = none
}

// Find returns the flight of a key that has not ended; nil if there is none.
func (e *Engine[K]) Find(k K) *Flight { return e.flights[k] }

// Bytes returns the bytes being moved in all lanes.
func (e *Engine[K]) Bytes() (n int64) {
	for i := range e.lanes {
		n += e.lanes[i].bytes
	}
	return n
}

// All returns the flights that have not ended, in no order.
func (e *Engine[K]) All() iter.Seq2[K, *Flight] { return maps.All(e.flights) }

// Len returns how many flights of a lane have not ended.
func (e *Engine[K]) Len(lane int) int { return e.lanes[lane].n }

// Room reports whether n more flights of an owner may start. If not, it counts a refusal.
func (e *Engine[K]) Room(owner uint32, n int) bool {
	fits := func(have, bound int) bool { return bound == 0 || have+n <= bound }
	if e.stopped == nil && fits(len(e.flights), e.cfg.Queue) && fits(e.owned[owner], e.cfg.Share) {
		return true
	}
	e.busy++
	return false
}

// Start begins a flight, or queues it. The key must have no flight, and there must be room
// for one more flight (see Room). Without workers, an error says that the flight could not
// begin and has ended.
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

// queue begins a flight if there are no workers, else adds it to its line.
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

// Urge marks a flight, and those that it follows, as urgent. They go ahead of flights that
// no caller waits for.
func (e *Engine[K]) Urge(f *Flight) {
	for ; f != nil; f = f.lead {
		if f.urgent {
			continue
		}
		f.urgent = true
		if f.state == ready && e.cfg.Workers {
			e.line(f) // front skips its place in the other line
		}
	}
}

// begin calls Begin of a flight's job and reports whether the flight is moving.
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

// kickRows is the maximum number of flights that one Kick tries, since it is called with
// the lock held.
const kickRows = 16

// Kick tries parked flights again, in order. It stops when a flight is parked again, or
// after kickRows flights; the next Kick tries the others.
func (e *Engine[K]) Kick() {
	for n := min(len(e.parked), kickRows); n > 0 && len(e.parked) > 0; n-- {
		f := e.parked[0]
		e.parked = e.parked[1:]
		if f.state != parking {
			continue
		}
		others := len(e.parked)
		e.queue(f)
		if len(e.parked) > others { // f, or a flight that it follows, was parked again
			last := e.parked[others]
			copy(e.parked[1:], e.parked[:others])
			e.parked[0] = last
			return
		}
	}
}

// Parked returns how many flights wait for a Kick.
func (e *Engine[K]) Parked() int { return len(e.parked) }

// Cancel ends a flight with err, and the flights that follow it. If the flight is moving,
// its job is released once the move has finished.
func (e *Engine[K]) Cancel(f *Flight, err error) {
	if f.state == ended {
		return
	}
	if f.state == parking {
		e.parked = slices.DeleteFunc(e.parked, func(g *Flight) bool { return g == f })
	}
	e.end(f, err)
}

// end ends a flight and notifies its waiters and followers.
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

// follow queues a flight whose lead has ended, or ends it if the lead failed.
func (e *Engine[K]) follow(f *Flight, err error) {
	if err != nil {
		e.end(f, err)
		return
	}
	e.queue(f)
}

// Work runs flights of a lane until ctx ends. Several workers may run concurrently.
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

// carry takes the next flight and moves it if it begins. If the parameter wait is true, it
// waits for a flight. It reports whether there was a flight.
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

// take takes and begins the next flight. ctx must be the context that wakes workers when
// it ends, not a context derived from it, which may end after the wakeup.
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
		case again: // others get the lock first
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

// Try runs one ready flight of a lane, and reports whether there was one.
func (e *Engine[K]) Try(ctx context.Context, lane int) bool { return e.carry(ctx, lane, false) }

// pick removes the next flight from its line, urgent ones first. It returns nil if the
// flight would exceed the bound on bytes. The second result is true if Idle should be
// called again.
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
		return nil, false // it waits until another flight has moved
	}
	*line = (*line)[1:]
	return f, false
}

// front returns the line whose first flight is next; nil if none is ready. It drops
// entries of flights that are not ready any more or have moved to the other line.
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

// Peek returns the flight of lane 0 that a worker would begin next; nil if none is ready.
func (e *Engine[K]) Peek() *Flight {
	if line := e.lanes[0].front(); line != nil {
		return (*line)[0]
	}
	return nil
}

// Waiting reports whether lane 0 has a ready flight that is not urgent.
func (e *Engine[K]) Waiting() bool {
	return slices.ContainsFunc(e.lanes[0].lines[1], func(f *Flight) bool { return f.state == ready && !f.urgent })
}

// Wake wakes a worker of lane 0, which calls Idle if it has nothing to do.
func (e *Engine[K]) Wake() { e.lanes[0].work.Signal() }

// Launch moves the flights that Start has begun, in an engine without workers. It is
// called without the lock after anything that may begin flights.
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
	e.lanes[f.lane].work.Signal() // the bound on bytes may have delayed a flight
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

// Stop ends all flights with err; none starts until Resume.
func (e *Engine[K]) Stop(err error) {
	e.stopped = err
	for len(e.flights) > 0 {
		for _, f := range e.flights {
			e.Cancel(f, err)
			break // it may have ended other flights too
		}
	}
	for i := range e.lanes {
		e.lanes[i].lines = [2][]*Flight{}
		e.lanes[i].work.Broadcast()
	}
}

// Resume ends a Stop.
func (e *Engine[K]) Resume() { e.stopped = nil }

// Stats returns the counts of a lane. Busy counts all lanes.
func (e *Engine[K]) Stats(lane int) Stats {
	s := e.lanes[lane].stats
	s.Busy = e.busy
	return s
}
