package parallel

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// jobState is where a job of this node is.
//
//	         ┌──────────► fetching its first piece ──┐
//	sent ────┤                                       ▼
//	         └────────────────────────────────────► queued ──► given to its engine
//	from each of the three:  done │ lost │ late │ withdrawn, all final
type jobState uint8

const (
	fetching jobState = iota
	queued
	given
	finished // with an outcome
	withdrawn
	jobStates
)

// jobEvent is what happens to a job.
type jobEvent uint8

const (
	leftCame jobEvent = iota // its first piece is here
	wasGiven
	ended // an outcome is known
	wasWithdrawn
	jobEvents
)

// never is the state after what cannot happen.
const never = jobStates

var jobMoves = [jobStates][jobEvents]jobState{
	fetching:  {queued, never, finished, withdrawn},
	queued:    {never, given, finished, withdrawn},
	given:     {never, never, finished, withdrawn},
	finished:  {finished, never, finished, finished},
	withdrawn: {withdrawn, never, withdrawn, withdrawn},
}

// job is a segment, or the right piece of one, that an engine of this node computes for
// somebody. Guarded by board.mu.
type job struct {
	id     uint64 // on this node; what engines are told
	number uint32 // of its plan
	origin *origin
	worker *worker
	Segment
	begin  int // 0 = all of it
	left   profile.SegmentKey
	until  time.Time
	millis float64 // it is expected to take
	state  jobState
	let    func() // gives back the lease of its first piece; nil = none
}

// move is the one place where a job changes its state; changed tells whether it did.
func (j *job) move(e jobEvent) (changed bool) {
	to := jobMoves[j.state][e]
	if to == never {
		panic(fmt.Sprintf("parallel: event %d of job %d, which is in state %d", e, j.id, j.state))
	}
	changed, j.state = to != j.state, to
	return changed
}

func (j *job) over() bool { return j.state == finished || j.state == withdrawn }

// worker is an engine that takes jobs: one connection, for one profile and tenant. Guarded
// by board.mu.
type worker struct {
	id      uint64
	conn    uint64
	scope   Scope
	most    int                // jobs at once
	pieces  bool               // it can go on from one
	primers []profile.PrimerID // after which it is able to capture segments
	queue   float64
	told    time.Time // when queue was told
	asking  int       // watches that wait; one at most
	asked   time.Time // when it last had an answer
	jobs    []*job    // not over, in order
	gone    []uint64  // ids of given jobs that were withdrawn, not told yet
	wake    chan struct{}
}

// has reports whether the engine can capture segments after a primer; zero = after none.
func (w *worker) has(primer profile.PrimerID) bool {
	return primer == profile.PrimerID{} || slices.Contains(w.primers, primer)
}

// queued is the milliseconds of work before a new job would begin.
func (w *worker) queued(now time.Time) float64 {
	ms := max(0, w.queue-millis(now.Sub(w.told)))
	for _, j := range w.jobs {
		ms += j.millis
	}
	return ms
}

// busy reports whether it has a job: then it need not ask for another one.
func (w *worker) busy() bool {
	return slices.ContainsFunc(w.jobs, func(j *job) bool { return j.state == given })
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// origin is a plan that has jobs here: of another node, or of this one ("").
type origin struct {
	key     originKey
	jobs    map[uint32]*job // by number, those that are over included
	results []result
	polls   int       // requests that wait
	polled  time.Time // when the last one ended
	wake    chan struct{}
}

type originKey struct {
	peer string
	plan uint64
}

// signal wakes whoever waits, or who comes next.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
