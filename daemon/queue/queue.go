// Package queue divides the time of workers between users, and between the connections of
// each. It queues jobs until a worker is free, and makes long jobs yield to others. The
// caller defines jobs and runs the goroutines. All methods may be called concurrently.
package queue

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Queue queues jobs J for workers and divides the time of the workers. Users take turns, and so
// do the connections of one user: the one that used least is next. So a client gains no time by
// having many requests in flight, connections or long jobs.
//
// The queue has no bound: callers bound the number of lanes, and of jobs in a lane.
//
// A job is short until it has used a turn, and long from then on. A long job yields to others
// (see GiveWay): it is parked together with its goroutine, and continues when its lane is next.
// While short requests arrive, long jobs leave one worker free for them. Otherwise a short
// request that waits for the end of a turn would also wait for Go's scheduler and the kernel to
// take a processor away from the job, which takes ticks of 4 and 10 ms.
//
// Invariant: at most as many jobs run as there are workers. A reader that runs one counts; a
// parked one does not.
//
// Invariant: if a worker is free and an unstarted job is next, a goroutine calls Next, or is
// about to.
type Queue[J comparable] struct {
	workers int
	spawn   func() // starts a goroutine that calls Next; called under mu
	short   *LastShort

	mu struct {
		sync.Mutex
		users   map[User]*account
		waiting []*Lane[J] // lanes with work, oldest first
		length  int        // jobs not started
		running int
		long    int           // running jobs that have used a turn
		clock   time.Duration // last observed account.used of the waiting user with least time
		idle    int           // goroutines waiting in Next and not yet woken
		later   *time.Timer   // checks again; nil = not needed
		closed  bool
	}
	ready *sync.Cond // on mu: there is work and a worker is free, or closed
}

const (
	// turnTime is the time a job may run while others wait. A turn costs two hand-overs of
	// about 10 µs.
	turnTime   = time.Millisecond
	yieldEvery = 100 * time.Microsecond
	// mostAhead is the largest lead in used time that a lane or user is charged over
	// waiting ones.
	mostAhead = 2 * turnTime
	// shortFor is the time for which a short request counts as a sign of more to come: longer than an
	// engine's step between two requests. A guess.
	shortFor = time.Second
)

// User identifies the unit between which time is divided, of which a client cannot have
// many. Tenant is the first tenant of a connection, whose token it has shown.
type User struct{ UID, Tenant uint32 }

// account is the time used by one user. Guarded by Queue.mu.
type account struct {
	user  User
	lanes int
	used  time.Duration
	clock time.Duration // Lane.used of the lane served last
}

// Lane is the work of one connection, valid from Join to Part. Guarded by Queue.mu.
type Lane[J comparable] struct {
	account *account // set by Join
	used    time.Duration
	waiting []J             // not started, oldest first
	parked  []chan struct{} // of jobs that yielded; closed when they continue
	resumed bool            // the last job served was parked
}

// Place is a running job's place in its queue, from Begin to Leave. It belongs to one goroutine.
type Place[J comparable] struct {
	queue   *Queue[J]
	lane    *Lane[J]
	since   time.Time // start of its turn
	long    bool
	worker  bool      // its goroutine calls Next again
	yielded time.Time // when its goroutine last yielded
}

// LastShort is the time of the latest reply to a short request, shared by all queues that
// delay such replies.
type LastShort struct{ at atomic.Int64 } // unix nanoseconds

// Note records a reply to a short request. It writes seldom, since all processors read the value.
func (l *LastShort) Note(now time.Time) {
	if at := now.UnixNano(); at-l.at.Load() > int64(time.Millisecond) {
		l.at.Store(at)
	}
}

// within reports whether that was less than d ago.
func (l *LastShort) within(d time.Duration) bool { return time.Now().UnixNano()-l.at.Load() < int64(d) }

// New creates a queue. spawn starts one more goroutine that calls Next until that returns
// false; it is called with the queue locked. Others may call Next too.
func New[J comparable](workers int, short *LastShort, spawn func()) *Queue[J] {
	q := &Queue[J]{workers: workers, short: short, spawn: spawn}
	q.mu.users = map[User]*account{}
	q.ready = sync.NewCond(&q.mu)
	return q
}

// Spawn starts a goroutine to replace one that will not call Next again.
func (q *Queue[J]) Spawn() { q.spawn() }

// Join assigns l to a user. It must precede all other uses of l.
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

// Part undoes Join. l must have no work.
func (q *Queue[J]) Part(l *Lane[J]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.account.lanes--; l.account.lanes == 0 {
		delete(q.mu.users, l.account.user)
	}
}

// Put adds j to l; false if the queue is closed.
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

// comesLocked adds l and its user to those that want time. After a long absence their lead
// over the others is one turn, and not all the time that the others used meanwhile.
func (q *Queue[J]) comesLocked(l *Lane[J]) {
	a := l.account
	a.used = max(a.used, q.mu.clock-turnTime)
	l.used = max(l.used, a.clock-turnTime)
}

// waitsLocked is called before work is added to l.
func (q *Queue[J]) waitsLocked(l *Lane[J]) {
	if len(l.waiting)+len(l.parked) == 0 {
		q.mu.waiting = append(q.mu.waiting, l)
	}
}

// servedLocked is called after work was taken from l.
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
	for _, other := range q.mu.waiting { // a short job may overtake a long one that has used less
		if other.before(least) {
			least = other
		}
	}
	q.mu.clock = max(q.mu.clock, least.account.used)
	least.account.clock = max(least.account.clock, least.used)
}

// endTurnLocked counts the end of a turn.
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

// charged returns the used time after a turn of length had. It limits the lead over others,
// so that a job that becomes long waits for a few of their turns, and not until they have
// used as much as its lane did while they were absent or blocked.
func charged(used, had, clock time.Duration) time.Duration {
	return max(used, min(used+had, clock+mostAhead))
}

// mayLongLocked reports whether one more long job may run.
func (q *Queue[J]) mayLongLocked() bool {
	return q.mu.long < max(1, q.workers-1) || q.mu.long < q.workers && !q.short.within(shortFor)
}

// nextLocked returns the next lane, nil if there is none, and whether its next job is parked.
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

// before reports whether l has used less than m: first its user, then the lane itself.
func (l *Lane[J]) before(m *Lane[J]) bool {
	if l.account != m.account {
		return l.account.used < m.account.used
	}
	return l.used < m.used
}

// resumeLocked resumes parked jobs that are next. It then returns the next lane if its next
// job is unstarted, else nil.
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

// laterLocked schedules another check for when short requests may have stopped: without it,
// nothing may happen until the running long jobs end.
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

// wakeLocked wakes a goroutine for Next if there is work for it.
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

// Next waits for work and counts it as started; false if the queue is closed and empty, or
// enough others wait.
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

// Enter counts work outside the queue as started; false if no worker is free, or others
// wait for one.
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

// Begin returns the place of work that Next or Enter has counted. worker means that this
// goroutine calls Next when the job has ended.
func (q *Queue[J]) Begin(l *Lane[J], now time.Time, worker bool) Place[J] {
	return Place[J]{queue: q, lane: l, since: now, yielded: now, worker: worker}
}

// Leave ends a place.
func (p *Place[J]) Leave() {
	q, now := p.queue, time.Now()
	if !p.long {
		q.short.Note(now)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endTurnLocked(p, now)
	if p.worker {
		q.resumeLocked() // it calls Next
	} else {
		q.wakeLocked()
	}
}

// GiveWay ends a job's turn when it is over, and starts another one when its lane is next.
// A nil place belongs to a request that is not a job.
func (p *Place[J]) GiveWay() {
	if p == nil {
		return
	}
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

// Take removes j if it has not started.
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

// Close is called when no more work is added. Next returns false once all queued work has
// been handed out.
func (q *Queue[J]) Close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.idle = 0
	q.mu.Unlock()
	q.ready.Broadcast()
}

// shift removes the first element and keeps the array. Appending and reslicing would
// instead reallocate it again and again.
func shift[T any](s []T) []T {
	n := copy(s, s[1:])
	clear(s[n:])
	return s[:n]
}
