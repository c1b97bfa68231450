package parallel

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// jobState is the state of a job of this node. A job that computes a right piece may first fetch
// the left piece of its segment from another node.
//
//	         ┌──────────► fetching the left piece ──┐
//	sent ────┤                                      ▼
//	         └───────────────────────────────────► queued ──► given to its engine
//	from each of the three:  done │ lost │ late │ withdrawn, all final
type jobState uint8

const (
	fetching jobState = iota
	queued
	given
	finished // an outcome is known
	withdrawn
	jobStates
)

// jobEvent is an event that may change the state of a job.
type jobEvent uint8

const (
	leftCame jobEvent = iota // its left piece has arrived
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

// job is a segment, or the right piece of one, that an engine of this node computes for a plan. It
// is guarded by board.mu.
type job struct {
	id     uint64 // unique on this node; engines see this id
	number uint32 // within its plan
	origin *origin
	worker *worker
	Segment
	begin  int // first token to compute; 0 = the whole segment
	left   profile.SegmentKey
	until  time.Time
	millis float64 // expected duration of the computation
	state  jobState
	let    func() // releases the lease of the left piece; nil = none
}

// move applies an event to the job and reports whether that changed the job's state. No other
// function changes the state of a job.
func (j *job) move(e jobEvent) (changed bool) {
	to := jobMoves[j.state][e]
	if to == never {
		panic(fmt.Sprintf("parallel: event %d of job %d, which is in state %d", e, j.id, j.state))
	}
	changed, j.state = to != j.state, to
	return changed
}

func (j *job) over() bool { return j.state == finished || j.state == withdrawn }

// worker is an engine that takes jobs: one connection, for one profile and tenant. It is guarded by
// board.mu.
type worker struct {
	id      uint64
	conn    uint64
	scope   Scope
	most    int                // most jobs at the same time
	pieces  bool               // it can continue from a left piece
	primers []profile.PrimerID // primers after which it can capture segments
	queue   float64
	told    time.Time // when the engine reported queue
	asking  int       // number of waiting requests for jobs, at most 1
	asked   time.Time // when the latest request for jobs was answered
	jobs    []*job    // open, in order
	gone    []uint64  // ids of jobs given to it that have ended, to be reported to it
	wake    chan struct{}
}

// has reports whether the engine can capture segments after a primer. Zero means without a primer,
// as every engine can.
func (w *worker) has(primer profile.PrimerID) bool {
	return primer == profile.PrimerID{} || slices.Contains(w.primers, primer)
}

// queued returns the milliseconds of work that the engine has before it would start a new job.
func (w *worker) queued(now time.Time) float64 {
	ms := max(0, w.queue-millis(now.Sub(w.told)))
	for _, j := range w.jobs {
		ms += j.millis
	}
	return ms
}

// busy reports whether the engine computes a job. A busy engine does not ask for jobs, but must not
// be removed as idle.
func (w *worker) busy() bool {
	return slices.ContainsFunc(w.jobs, func(j *job) bool { return j.state == given })
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// origin is a plan, of this or another node, that has jobs on this node. In its key, peer is "" for
// a plan of this node.
type origin struct {
	key     originKey
	jobs    map[uint32]*job // by number, including finished ones
	results []result
	polls   int       // requests for results that are waiting
	polled  time.Time // when the latest request for results ended
	wake    chan struct{}
}

type originKey struct {
	peer string
	plan uint64
}

// signal wakes the goroutine that waits for c, or the next one that will wait.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
