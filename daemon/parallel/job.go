package parallel

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// jobState is the state of a job of this node.
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

// jobEvent is an event in the life of a job.
type jobEvent uint8

const (
	leftCame jobEvent = iota // its first piece has arrived
	wasGiven
	ended // its outcome is known
	wasWithdrawn
	jobEvents
)

// never is the state after an event that cannot happen.
const never = jobStates

var jobMoves = [jobStates][jobEvents]jobState{
	fetching:  {queued, never, finished, withdrawn},
	queued:    {never, given, finished, withdrawn},
	given:     {never, never, finished, withdrawn},
	finished:  {finished, never, finished, finished},
	withdrawn: {withdrawn, never, withdrawn, withdrawn},
}

// job is a segment, or the right piece of one, that an engine of this node computes for a
// plan. Guarded by board.mu.
type job struct {
	id     uint64 // on this node; the id that engines see
	number uint32 // within its plan
	origin *origin
	worker *worker
	Segment
	begin  int // 0 = the whole segment
	left   profile.SegmentKey
	until  time.Time
	millis float64 // expected duration
	state  jobState
	let    func() // releases the lease of its first piece; nil = none
}

// move is the only function that changes the state of a job; changed reports whether it did.
func (j *job) move(e jobEvent) (changed bool) {
	to := jobMoves[j.state][e]
	if to == never {
		panic(fmt.Sprintf("parallel: event %d of job %d, which is in state %d", e, j.id, j.state))
	}
	changed, j.state = to != j.state, to
	return changed
}

func (j *job) over() bool { return j.state == finished || j.state == withdrawn }

// worker is an engine that takes jobs: one connection, one profile and tenant. Guarded by
// board.mu.
type worker struct {
	id      uint64
	conn    uint64
	scope   Scope
	most    int                // jobs at once
	pieces  bool               // it can continue from a piece
	primers []profile.PrimerID // after which it can capture segments
	queue   float64
	told    time.Time // when queue was reported
	asking  int       // waiting watches, at most one
	asked   time.Time // time of the latest reply
	jobs    []*job    // open, in order
	gone    []uint64  // ids of given jobs that were withdrawn, not reported yet
	wake    chan struct{}
}

// has reports whether the engine can capture segments after a primer; zero = without one.
func (w *worker) has(primer profile.PrimerID) bool {
	return primer == profile.PrimerID{} || slices.Contains(w.primers, primer)
}

// queued returns the milliseconds of work before a new job would start.
func (w *worker) queued(now time.Time) float64 {
	ms := max(0, w.queue-millis(now.Sub(w.told)))
	for _, j := range w.jobs {
		ms += j.millis
	}
	return ms
}

// busy reports whether it has a job; then it need not request another one.
func (w *worker) busy() bool {
	return slices.ContainsFunc(w.jobs, func(j *job) bool { return j.state == given })
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// origin is a plan that has jobs here, of another node or of this one ("").
type origin struct {
	key     originKey
	jobs    map[uint32]*job // by number, including finished ones
	results []result
	polls   int       // waiting requests
	polled  time.Time // end of the latest one
	wake    chan struct{}
}

type originKey struct {
	peer string
	plan uint64
}

// signal wakes the waiting goroutine, or the next one to wait.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
