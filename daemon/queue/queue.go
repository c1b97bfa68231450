// Package queue divides the time of workers between users, and between the connections of each
// user. It queues jobs until a worker is free, and makes long jobs yield to others. The caller
// defines the jobs and runs the goroutines. All methods may be called concurrently.
package queue

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Queue queues jobs J for workers and divides the time of the workers. The user who has used the
// least time is next, and among the user's connections the one that has used the least. So a client
// gains no time by having many requests in flight, many connections or long jobs.
//
// The queue has no limit. Callers limit the number of lanes, and of jobs in a lane.
//
// A job is short until it has used a turn, and long from then on. A long job yields to others (see
// GiveWay): its goroutine sleeps, which is called parked, and continues when its lane is next.
// While short requests arrive, long jobs leave one worker free for them. Without a free worker, a
// short request would wait for the end of a turn, and then until Go's scheduler and the kernel take
// a processor away from the long job, which takes ticks of 4 and 10 ms.
//
// Invariant: at most as many jobs run as there are workers. A job that a reader runs counts; a
// parked job does not.
//
// Invariant: if a worker is free and a job that has not started is next, then some goroutine calls
// Next, or is about to.
type Queue[J comparable] struct {
	workers int
	spawn   func() // starts a goroutine that calls Next; called under mu
	short   *LastShort

	mu struct {
		sync.Mutex
		users   map[User]*account
		waiting []*Lane[J] // lanes with waiting or parked jobs, oldest first
		length  int        // number of jobs that have not started
		running int
		long    int           // running jobs that have used a turn
		clock   time.Duration // used time of the user who had used the least, when a job started last; never decreases
		idle    int           // goroutines that wait in Next and were not woken
		later   *time.Timer   // timer for another check; nil = not needed
		closed  bool
	}
	ready *sync.Cond // on mu: a worker is free and has work, or the queue is closed
}

const (
	// turnTime is the time that a job may run while others wait. A turn costs two hand-overs of
	// about 10 µs.
	turnTime   = time.Millisecond
	yieldEvery = 100 * time.Microsecond
	// mostAhead is the most by which the used time of a lane or user may exceed that of waiting ones.
	mostAhead = 2 * turnTime
	// shortFor is the time after a short request in which another one is expected: longer than an
	// engine's step between two requests. A guess.
	shortFor = time.Second
)

// User is the unit between which time is divided. Tenant is the first of the tenants whose tokens
// the connection has shown. A client cannot be many users, since it needs a uid and a token for
// each.
type User struct{ UID, Tenant uint32 }

// account is the time used by one user. It is guarded by Queue.mu.
type account struct {
	user  User
	lanes int
	used  time.Duration
	clock time.Duration // the same for the lanes of this user (see Queue.mu.clock)
}

// Lane is the work of one connection. It is valid from Join to Part, and guarded by Queue.mu.
type Lane[J comparable] struct {
	account *account // set by Join
	used    time.Duration
	waiting []J             // jobs that have not started, oldest first
	parked  []chan struct{} // one channel per job that has yielded; closed when the job continues
	resumed bool            // the last job served was a parked one
}

// Place is a running job's place in its queue, from Begin to Leave. One goroutine uses it.
type Place[J comparable] struct {
	queue   *Queue[J]
	lane    *Lane[J]
	since   time.Time // start of the current turn
	long    bool
	worker  bool      // its goroutine will call Next again
	yielded time.Time // when its goroutine last yielded
}

// LastShort is the time of the latest reply to a short request. All queues whose jobs could delay
// such replies share it.
type LastShort struct{ at atomic.Int64 } // unix nanoseconds

// Note records a reply to a short request. It writes at most once per millisecond, since all
// processors read the value.
func (l *LastShort) Note(now time.Time) {
	if at := now.UnixNano(); at-l.at.Load() > int64(time.Millisecond) {
		l.at.Store(at)
	}
}

// within reports whether the latest reply to a short request was less than d ago.
func (l *LastShort) within(d time.Duration) bool { return time.Now().UnixNano()-l.at.Load() < int64(d) }

// New creates a queue. The function spawn must start a goroutine that calls Next until Next returns
// false. It is called with the queue locked. Other goroutines may call Next too.
func New[J comparable](workers int, short *LastShort, spawn func()) *Queue[J] {
	q := &Queue[J]{workers: workers, short: short, spawn: spawn}
	q.mu.users = map[User]*account{}
	q.ready = sync.NewCond(&q.mu)
	return q
}

// Spawn starts a goroutine that replaces one that will not call Next again.
func (q *Queue[J]) Spawn() { q.spawn() }

// Join assigns l to a user. It must be called before l is used otherwise.
func (q *Queue[J]) Join(l *Lane[J], of User) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.mu.users[of]
	if a == nil {
		a = &account{user: of}
		q.mu.users[of] = a
	}
	a.lanes++
	l.account = a
}

// Part undoes Join. l must have no jobs.
func (q *Queue[J]) Part(l *Lane[J]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.account.lanes--; l.account.lanes == 0 {
		delete(q.mu.users, l.account.user)
	}
}

// Put adds j to l. It returns false if the queue is closed.
func (q *Queue[J]) Put(l *Lane[J], j J) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return false
	}
	q.comesLocked(l)
	q.waitsLocked(l)
	l.waiting = append(l.waiting, j)
	q.mu.length++
	q.wakeLocked()
	return true
}

// comesLocked is called when l gets work. While l was absent, others have used time. So that l and
// its user do not get all of that time at once, their used times are raised to at most one turn
// below those of the others.
func (q *Queue[J]) comesLocked(l *Lane[J]) {
	a := l.account
	a.used = max(a.used, q.mu.clock-turnTime)
	l.used = max(l.used, a.clock-turnTime)
}

// waitsLocked must be called before work is added to l.
func (q *Queue[J]) waitsLocked(l *Lane[J]) {
	if len(l.waiting)+len(l.parked) == 0 {
		q.mu.waiting = append(q.mu.waiting, l)
	}
}

// servedLocked must be called after work was taken from l.
func (q *Queue[J]) servedLocked(l *Lane[J]) {
	if len(l.waiting)+len(l.parked) == 0 {
		at := slices.Index(q.mu.waiting, l)
		q.mu.waiting = slices.Delete(q.mu.waiting, at, at+1)
	}
}

// beginLocked counts a started job of l.
func (q *Queue[J]) beginLocked(l *Lane[J]) {
	q.mu.running++
	least := l
	for _, other := range q.mu.waiting { // a short job may overtake a long job of a lane that has used less
		if other.before(least) {
			least = other
		}
	}
	q.mu.clock = max(q.mu.clock, least.account.used)
	least.account.clock = max(least.account.clock, least.used)
}

// endTurnLocked charges the lane and its user for a turn that ends.
func (q *Queue[J]) endTurnLocked(p *Place[J], now time.Time) {
	had := now.Sub(p.since)
	a := p.lane.account
	p.lane.used = charged(p.lane.used, had, a.clock)
	a.used = charged(a.used, had, q.mu.clock)
	q.mu.running--
	if p.long {
		q.mu.long--
	}
}

// charged returns the used time of a lane or user after a turn of the length had. It adds the whole
// turn, but goes at most mostAhead beyond clock, the smallest used time of the others. Without that
// limit, a long job that ran while others were absent or blocked would have to wait until they have
// used as much time. With it, the job waits for a few turns.
func charged(used, had, clock time.Duration) time.Duration {
	return max(used, min(used+had, clock+mostAhead))
}

// mayLongLocked reports whether one more long job may run now.
func (q *Queue[J]) mayLongLocked() bool {
	return q.mu.long < max(1, q.workers-1) || q.mu.long < q.workers && !q.short.within(shortFor)
}

// nextLocked returns the next lane, and whether its next job is a parked one; nil = none may run
// now.
func (q *Queue[J]) nextLocked() (next *Lane[J], parked bool) {
	if q.mu.running >= q.workers {
		return nil, false
	}
	long := len(q.mu.waiting) > 0 && q.mayLongLocked()
	for _, l := range q.mu.waiting {
		if (long || len(l.waiting) > 0) && (next == nil || l.before(next)) {
			next = l
		}
	}
	if next == nil {
		return nil, false
	}
	return next, long && len(next.parked) > 0 && (len(next.waiting) == 0 || !next.resumed)
}

// before reports whether l has used less time than m. It compares their users first.
func (l *Lane[J]) before(m *Lane[J]) bool {
	if l.account != m.account {
		return l.account.used < m.account.used
	}
	return l.used < m.used
}

// resumeLocked resumes parked jobs while a parked job is next. Then it returns the next lane, which
// has a job that has not started; nil = no such job may run now.
func (q *Queue[J]) resumeLocked() *Lane[J] {
	for {
		l, parked := q.nextLocked()
		if !parked {
			if l == nil && q.mu.running < q.workers && len(q.mu.waiting) > 0 {
				q.laterLocked()
			}
			return l
		}
		close(l.parked[0])
		l.parked = shift(l.parked)
		l.resumed = true
		q.servedLocked(l)
		q.beginLocked(l)
		q.mu.long++
	}
}

// laterLocked schedules a check for the time at which short requests may have stopped. Without that
// check, a parked job might wait until the running long jobs end.
func (q *Queue[J]) laterLocked() {
	if q.mu.later != nil {
		return
	}
	q.mu.later = time.AfterFunc(shortFor, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.mu.later = nil
		q.wakeLocked()
	})
}

// wakeLocked makes sure that a goroutine calls Next, if there is work for it.
func (q *Queue[J]) wakeLocked() {
	switch {
	case q.resumeLocked() == nil:
	case q.mu.idle > 0:
		q.mu.idle--
		q.ready.Signal()
	default:
		q.spawn()
	}
}

// Next waits for a job and counts it as started. It returns false if the queue is closed and empty,
// or if enough other goroutines wait.
func (q *Queue[J]) Next() (j J, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.resumeLocked()
	for ; l == nil; l = q.resumeLocked() {
		if q.mu.closed && len(q.mu.waiting) == 0 || q.mu.idle >= q.workers {
			return j, false
		}
		q.mu.idle++
		q.ready.Wait()
	}
	j = l.waiting[0]
	l.waiting = shift(l.waiting)
	l.resumed = false
	q.servedLocked(l)
	q.beginLocked(l)
	q.mu.length--
	return j, true
}

// Enter counts a job that was not in the queue as started. It returns false if no worker is free,
// or if other jobs wait for a worker.
func (q *Queue[J]) Enter(l *Lane[J]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resumeLocked() != nil || q.mu.running >= q.workers {
		return false
	}
	q.comesLocked(l)
	q.beginLocked(l)
	return true
}

// Begin returns the place of a job that Next or Enter has counted. The parameter worker states
// whether this goroutine calls Next when the job has ended.
func (q *Queue[J]) Begin(l *Lane[J], now time.Time, worker bool) Place[J] {
	return Place[J]{queue: q, lane: l, since: now, yielded: now, worker: worker}
}

// Leave ends the job's turn and frees its place.
func (p *Place[J]) Leave() {
	p.leaveAt(time.Now())
}

func (p *Place[J]) leaveAt(now time.Time) {
	q := p.queue
	if !p.long {
		q.short.Note(now)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endTurnLocked(p, now)
	if p.worker {
		q.resumeLocked() // this goroutine calls Next itself
	} else {
		q.wakeLocked()
	}
}

// GiveWay is called by a job now and then. If the job's turn is over, GiveWay waits until the job's
// lane is next.
func (p *Place[J]) GiveWay() {
	now := time.Now()
	if now.Sub(p.yielded) >= yieldEvery {
		p.yielded = now
		runtime.Gosched()
	}
	if now.Sub(p.since) >= turnTime {
		p.nextTurn(now)
	}
}

func (p *Place[J]) nextTurn(now time.Time) {
	q, l := p.queue, p.lane
	q.mu.Lock()
	q.endTurnLocked(p, now)
	p.long = true
	goOn := make(chan struct{})
	q.waitsLocked(l)
	l.parked = append(l.parked, goOn)
	q.wakeLocked()
	q.mu.Unlock()
	<-goOn
	p.since = time.Now()
}

// Take removes j from l and returns true, if j has not started.
func (q *Queue[J]) Take(l *Lane[J], j J) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(l.waiting, j)
	if at < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	q.mu.length--
	q.servedLocked(l)
	return true
}

// Waiting returns the number of jobs that have not started.
func (q *Queue[J]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.length
}

// Close must be called when no more work is added. Next returns false once all queued jobs have
// been handed out.
func (q *Queue[J]) Close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.idle = 0
	q.mu.Unlock()
	q.ready.Broadcast()
}

// shift removes the first element and keeps the array. With reslicing, appending would reallocate
// the array again and again.
func shift[T any](s []T) []T {
	n := copy(s, s[1:])
	clear(s[n:])
	return s[:n]
}
