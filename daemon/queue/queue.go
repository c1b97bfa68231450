// Package queue divides the time of workers between users, and between the
// connections of each. It holds jobs until a worker is free, and has long ones give
// way to others. What a job is, and the goroutines that run them, are its caller's. All
// calls may be made at once.
package queue

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Queue holds jobs J until there is a worker for them, and divides the time of the
// workers. Users take turns, and the connections of one user: next is always who has
// had least. What an attacker can have many of, requests in flight, connections and
// long jobs, so gets him no more time than others.
//
// It has no bound of its own: callers bound the jobs of a lane, and lanes.
//
// A job is short until it had a turn, and long from then on. A long one gives way to
// others (see GiveWay): it is parked, with the goroutine that runs it, and goes on when
// its lane is next. While short requests come, long jobs leave one worker to them:
// whoever had to wait for the end of a turn would also wait for Go's scheduler and the
// kernel's to take a processor away from it, which takes ticks of 4 and 10 ms.
//
// Invariant: at most as many jobs run as there are workers; a reader that runs one
// counts, one that is parked does not.
//
// Invariant: where a worker is free and it is the turn of a job that was not begun, a
// goroutine calls Next, or is about to.
type Queue[J comparable] struct {
	workers int
	spawn   func() // starts a goroutine that calls Next; called under mu
	short   *LastShort

	mu struct {
		sync.Mutex
		users   map[User]*account
		waiting []*Lane[J] // those with work, oldest first
		length  int        // jobs that were not begun
		running int
		long    int           // of these, jobs that had a turn
		clock   time.Duration // account.used of who wanted time and had least, as seen last
		idle    int           // goroutines that wait in Next and were not woken
		later   *time.Timer   // looks again; nil = nobody has to
		closed  bool
	}
	ready *sync.Cond // on mu: there is work and a worker is free, or closed
}

const (
	// turnTime is how long a job may run while others wait. A turn costs two
	// hand-overs of some 10 µs.
	turnTime   = time.Millisecond
	yieldEvery = 100 * time.Microsecond
	// mostAhead is how much more time a lane or user may have had than others that wait.
	mostAhead = 2 * turnTime
	// shortFor is how long a short request counts as one of those that come: longer than
	// an engine's step between two of them. A guess.
	shortFor = time.Second
)

// User is whom time is divided between: what a client cannot have many of. The tenant
// is the first of a connection, whose token it has shown.
type User struct{ UID, Tenant uint32 }

// account is what one user has had. Guarded by Queue.mu.
type account struct {
	user  User
	lanes int
	used  time.Duration
	clock time.Duration // Lane.used of who was served last
}

// Lane is the work of one connection, in use from Join to Part. Guarded by Queue.mu.
type Lane[J comparable] struct {
	account *account // set by Join
	used    time.Duration
	waiting []J             // not begun, oldest first
	parked  []chan struct{} // of jobs that gave way; closed when they go on
	resumed bool            // the last one served was parked
}

// Place is what a running job has of its queue: from Begin to Leave, by one goroutine.
type Place[J comparable] struct {
	queue   *Queue[J]
	lane    *Lane[J]
	since   time.Time // when its turn began
	long    bool
	worker  bool      // its goroutine calls Next again
	yielded time.Time // when its goroutine last let others run
}

// LastShort is when a short request was answered last, for all queues that its answer keeps waiting.
type LastShort struct{ at atomic.Int64 } // unix nanoseconds

// Note notes that one was answered now. It is seldom written, since all processors read it.
func (l *LastShort) Note(now time.Time) {
	if at := now.UnixNano(); at-l.at.Load() > int64(time.Millisecond) {
		l.at.Store(at)
	}
}

// within reports whether that was less than d ago.
func (l *LastShort) within(d time.Duration) bool { return time.Now().UnixNano()-l.at.Load() < int64(d) }

// New makes a queue. spawn starts one more goroutine that calls Next until that answers
// false; it is called with the queue locked. Others may call Next too.
func New[J comparable](workers int, short *LastShort, spawn func()) *Queue[J] {
	q := &Queue[J]{workers: workers, short: short, spawn: spawn}
	q.mu.users = map[User]*account{}
	q.ready = sync.NewCond(&q.mu)
	return q
}

// Spawn starts a goroutine in the place of one that will not call Next again.
func (q *Queue[J]) Spawn() { q.spawn() }

// Join makes l a lane of a user. It comes before all other use of l.
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

// Part ends Join. l has no work.
func (q *Queue[J]) Part(l *Lane[J]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.account.lanes--; l.account.lanes == 0 {
		delete(q.mu.users, l.account.user)
	}
}

// Put adds j to l; false when the queue is closed.
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

// comesLocked counts l and its user among those that want time. Who had none for long
// is ahead of the others by one turn, and not by all that they had meanwhile.
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

// beginLocked counts a job of l in.
func (q *Queue[J]) beginLocked(l *Lane[J]) {
	q.mu.running++
	least := l
	for _, other := range q.mu.waiting { // a short job may pass a long one that has had less
		if other.before(least) {
			least = other
		}
	}
	q.mu.clock = max(q.mu.clock, least.account.used)
	least.account.clock = max(least.account.clock, least.used)
}

// endTurnLocked counts a job out.
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

// charged is what was used with what was had now: so much more than others at most that
// a job which becomes long waits for a few turns of theirs, and not until they have
// had all that its lane had while they did not want it, or could not have it.
func charged(used, had, clock time.Duration) time.Duration {
	return max(used, min(used+had, clock+mostAhead))
}

// mayLongLocked reports whether one more long job may run.
func (q *Queue[J]) mayLongLocked() bool {
	return q.mu.long < max(1, q.workers-1) || q.mu.long < q.workers && !q.short.within(shortFor)
}

// nextLocked is the lane that is next, nil if none is, and whether with a parked job.
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

// before reports whether l has had less than m: its user, or it itself.
func (l *Lane[J]) before(m *Lane[J]) bool {
	if l.account != m.account {
		return l.account.used < m.account.used
	}
	return l.used < m.used
}

// resumeLocked has parked jobs go on that are next. What it returns is then the lane
// that is next with a job that was not begun, nil if none is.
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

// laterLocked looks again when short requests may have ceased: nothing else may happen
// until the long jobs that run have ended.
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

// wakeLocked has a goroutine call next when there is something for it.
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

// Next waits for work and counts it in; false when the queue is closed
// and empty, or enough others wait.
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

// Enter counts work in that is not in the queue; false when no
// worker is free, or others wait for one.
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

// Begin is what Next or Enter counted in, from now on. worker: this goroutine calls Next
// when the job has ended.
func (q *Queue[J]) Begin(l *Lane[J], now time.Time, worker bool) Place[J] {
	return Place[J]{queue: q, lane: l, since: now, yielded: now, worker: worker}
}

// Leave ends Begin.
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

// GiveWay ends the turn of a job when it is over, and begins another one when its lane
// is next. A nil place is that of a request that is no job.
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

// Take removes j if nobody has begun it.
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

// Waiting is how many jobs were not begun.
func (q *Queue[J]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.length
}

// Close is called when nobody puts work any more. It makes Next return false once what
// waits was handed out.
func (q *Queue[J]) Close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.idle = 0
	q.mu.Unlock()
	q.ready.Broadcast()
}

// shift drops the first element and keeps the array, which an append at the end
// and a reslice at the front would move through memory for ever.
func shift[T any](s []T) []T {
	n := copy(s, s[1:])
	clear(s[n:])
	return s[:n]
}
