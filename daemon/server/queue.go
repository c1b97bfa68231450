package server

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue holds jobs until there is a worker for them, and divides the time of the
// workers. Users take turns, and the connections of one user: next is always who has
// had least. What an attacker can have many of, requests in flight, connections and
// long jobs, so gets him no more time than others.
//
// Its bound is the sum of its users': MaxConnections times MaxInFlight.
//
// A job is short until it had a turn, and long from then on. A long one gives way to
// others (see giveWay): it is parked, with the goroutine that runs it, and goes on when
// its lane is next. While short requests come, long jobs leave one worker to them:
// whoever had to wait for the end of a turn would also wait for Go's scheduler and the
// kernel's to take a processor away from it, which takes ticks of 4 and 10 ms.
//
// Invariant: at most as many jobs run as there are workers; a reader that runs one
// counts, one that is parked does not.
//
// Invariant: where a worker is free and it is the turn of a job that was not begun, a
// goroutine calls next, or is about to.
type queue struct {
	workers int
	spawn   func() // starts a goroutine of work; called under mu
	short   *lastTime

	mu struct {
		sync.Mutex
		users   map[user]*account
		waiting []*lane // those with work, oldest first
		length  int     // jobs that were not begun
		running int
		long    int           // of these, jobs that had a turn
		clock   time.Duration // account.used of who wanted time and had least, as seen last
		idle    int           // goroutines that wait in next and were not woken
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

// user is whom time is divided between: what a client cannot have many of. The tenant
// is the first of a connection, whose token it has shown.
type user struct{ uid, tenant uint32 }

// account is what one user has had. Guarded by queue.mu.
type account struct {
	user  user
	lanes int
	used  time.Duration
	clock time.Duration // lane.used of who was served last
}

// lane is the work of one connection. Guarded by queue.mu.
type lane struct {
	account *account // set by join
	used    time.Duration
	waiting []*job          // not begun, oldest first
	parked  []chan struct{} // of jobs that gave way; closed when they go on
	resumed bool            // the last one served was parked
}

// place is what a running job has of its queue.
type place struct {
	queue   *queue
	lane    *lane
	since   time.Time // when its turn began
	long    bool
	worker  bool      // it runs on a goroutine of work
	yielded time.Time // when its goroutine last let others run
}

// lastTime is when something happened last.
type lastTime struct{ at atomic.Int64 } // unix nanoseconds

// note notes that it happened now. It is seldom written, since all processors read it.
func (l *lastTime) note(now time.Time) {
	if at := now.UnixNano(); at-l.at.Load() > int64(time.Millisecond) {
		l.at.Store(at)
	}
}

// within reports whether it happened less than d ago.
func (l *lastTime) within(d time.Duration) bool { return time.Now().UnixNano()-l.at.Load() < int64(d) }

// newQueue makes a queue; short is when a short request was answered last.
func newQueue(workers int, short *lastTime) *queue {
	q := &queue{workers: workers, short: short}
	q.mu.users = map[user]*account{}
	q.ready = sync.NewCond(&q.mu)
	q.spawn = func() { go q.work() }
	return q
}

// join makes l a lane of a user. It comes before all other use of l.
func (q *queue) join(l *lane, of user) {
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

// part ends join. l has no work.
func (q *queue) part(l *lane) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.account.lanes--; l.account.lanes == 0 {
		delete(q.mu.users, l.account.user)
	}
}

// put adds j to l; false when the queue is closed.
func (q *queue) put(l *lane, j *job) bool {
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
func (q *queue) comesLocked(l *lane) {
	a := l.account
	a.used = max(a.used, q.mu.clock-turnTime)
	l.used = max(l.used, a.clock-turnTime)
}

// waitsLocked is called before work is added to l.
func (q *queue) waitsLocked(l *lane) {
	if len(l.waiting)+len(l.parked) == 0 {
		q.mu.waiting = append(q.mu.waiting, l)
	}
}

// servedLocked is called after work was taken from l.
func (q *queue) servedLocked(l *lane) {
	if len(l.waiting)+len(l.parked) == 0 {
		at := slices.Index(q.mu.waiting, l)
		q.mu.waiting = slices.Delete(q.mu.waiting, at, at+1)
	}
}

// beginLocked counts a job of l in.
func (q *queue) beginLocked(l *lane) {
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
func (q *queue) endTurnLocked(p *place, now time.Time) {
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
func (q *queue) mayLongLocked() bool {
	return q.mu.long < max(1, q.workers-1) || q.mu.long < q.workers && !q.short.within(shortFor)
}

// nextLocked is the lane that is next, nil if none is, and whether with a parked job.
func (q *queue) nextLocked() (next *lane, parked bool) {
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
func (l *lane) before(m *lane) bool {
	if l.account != m.account {
		return l.account.used < m.account.used
	}
	return l.used < m.used
}

// resumeLocked has parked jobs go on that are next. What it returns is then the lane
// that is next with a job that was not begun, nil if none is.
func (q *queue) resumeLocked() *lane {
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
func (q *queue) laterLocked() {
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
func (q *queue) wakeLocked() {
	switch {
	case q.resumeLocked() == nil:
	case q.mu.idle > 0:
		q.mu.idle--
		q.ready.Signal()
	default:
		q.spawn()
	}
}

// next waits for work and counts it in; false when the queue is closed
// and empty, or enough others wait.
func (q *queue) next() (*job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.resumeLocked()
	for ; l == nil; l = q.resumeLocked() {
		if q.mu.closed && len(q.mu.waiting) == 0 || q.mu.idle >= q.workers {
			return nil, false
		}
		q.mu.idle++
		q.ready.Wait()
	}
	j := l.waiting[0]
	l.waiting = shift(l.waiting)
	l.resumed = false
	q.servedLocked(l)
	q.beginLocked(l)
	q.mu.length--
	return j, true
}

// enter counts work in that is not in the queue; false when no
// worker is free, or others wait for one.
func (q *queue) enter(l *lane) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resumeLocked() != nil || q.mu.running >= q.workers {
		return false
	}
	q.comesLocked(l)
	q.beginLocked(l)
	return true
}

// leave ends next or enter.
func (p *place) leave() {
	q, now := p.queue, time.Now()
	if !p.long {
		q.short.note(now)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endTurnLocked(p, now)
	if p.worker {
		q.resumeLocked() // it calls next
	} else {
		q.wakeLocked()
	}
}

// giveWay ends the turn of a job when it is over, and begins another one when its lane
// is next. A nil place is that of a request that is no job.
func (p *place) giveWay() {
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

func (p *place) nextTurn(now time.Time) {
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

// take removes j if nobody has begun it.
func (q *queue) take(l *lane, j *job) bool {
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

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.length
}

// close is called when nobody puts work any more. It makes next return false once what waits was handed out.
func (q *queue) close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.idle = 0
	q.mu.Unlock()
	q.ready.Broadcast()
}

// work runs jobs until the queue is closed, or others do.
func (q *queue) work() {
	s := &scratch{worker: q}
	for s.worker != nil {
		j, ok := q.next()
		if !ok {
			return
		}
		j.conn.run(j, s, time.Now())
	}
}

// shift drops the first element and keeps the array, which an append at the end
// and a reslice at the front would move through memory for ever.
func shift[T any](s []T) []T {
	n := copy(s, s[1:])
	clear(s[n:])
	return s[:n]
}
