package server

import (
	"sync"
	"time"
)

// queue holds jobs until there is a worker for them. Connections take
// turns, so that one with many requests in flight delays another by one request
// and not by all of its own.
//
// Its bound is the sum of its users': MaxConnections times MaxInFlight.
//
// A job that takes long gives way to others (see giveWay): it is parked, with the
// goroutine that runs it, and goes on when a place is free that no other job wants, or
// after a few of these.
//
// Invariant: at most as many jobs run as there are workers; a reader that runs one
// counts, one that is parked does not.
//
// Invariant: a goroutine calls next, or will when its job has ended, as long as there is
// work: who parks a worker, or sends with one, starts another.
type queue struct {
	workers int
	spawn   func() // starts a goroutine of work

	mu struct {
		sync.Mutex
		turn    []*lane // lanes with work, next one first
		length  int
		parked  []chan struct{} // of jobs that gave way; closed when they go on
		passed  int             // jobs that were begun since one of these went on
		running int
		idle    int // goroutines that wait in next
		closed  bool
	}
	ready *sync.Cond // on mu: there is work and a worker is free, or closed
}

const (
	// turnTime is how long a job may run while others wait. Twelve connections with
	// endless jobs delay another by one turn.
	turnTime = 5 * time.Millisecond
	// mostPass is how many jobs are begun before one that gave way goes on.
	mostPass = 4
)

// lane is the waiting work of one connection, oldest first. Guarded by queue.mu.
type lane struct{ waiting []*job }

func newQueue(workers int) *queue {
	q := &queue{workers: workers}
	q.ready = sync.NewCond(&q.mu)
	q.spawn = func() { go q.work() }
	return q
}

// put adds j to l; false when the queue is closed.
func (q *queue) put(l *lane, j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return false
	}
	if len(l.waiting) == 0 {
		q.mu.turn = append(q.mu.turn, l)
	}
	l.waiting = append(l.waiting, j)
	q.mu.length++
	q.ready.Signal()
	return true
}

// next waits for work and counts it in; false when the queue is closed
// and empty, or enough others wait.
func (q *queue) next() (*job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.resumeLocked(); len(q.mu.turn) == 0 || q.mu.running >= q.workers; q.resumeLocked() {
		if q.mu.closed && len(q.mu.turn) == 0 || q.mu.idle >= q.workers {
			return nil, false
		}
		q.mu.idle++
		q.ready.Wait()
		q.mu.idle--
	}
	q.mu.passed++
	l := q.mu.turn[0]
	q.mu.turn = shift(q.mu.turn)
	j := l.waiting[0]
	l.waiting = shift(l.waiting)
	if len(l.waiting) > 0 {
		q.mu.turn = append(q.mu.turn, l)
	}
	q.mu.length--
	q.mu.running++
	return j, true
}

// enter counts work in that is not in the queue; false when no
// worker is free, or others wait for one.
func (q *queue) enter() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.turn) > 0 || len(q.mu.parked) > 0 || q.mu.running >= q.workers {
		return false
	}
	q.mu.running++
	return true
}

// leave ends next or enter.
func (q *queue) leave() {
	q.mu.Lock()
	q.mu.running--
	q.resumeLocked()
	wanted := len(q.mu.turn) > 0
	q.mu.Unlock()
	if wanted {
		q.ready.Signal()
	}
}

// resumeLocked has jobs that gave way go on.
func (q *queue) resumeLocked() {
	for len(q.mu.parked) > 0 && q.mu.running < q.workers && (len(q.mu.turn) == 0 || q.mu.passed >= mostPass) {
		close(q.mu.parked[0])
		q.mu.parked = shift(q.mu.parked)
		q.mu.passed = 0
		q.mu.running++
	}
}

// giveWay leaves the place of a job to those that wait for one, and enters again
// behind them.
func (q *queue) giveWay() {
	q.mu.Lock()
	if len(q.mu.turn) == 0 && len(q.mu.parked) == 0 {
		q.mu.Unlock()
		return
	}
	goOn := make(chan struct{})
	q.mu.parked = append(q.mu.parked, goOn)
	q.mu.running--
	q.resumeLocked()
	short := len(q.mu.turn) > 0 && q.mu.idle == 0
	q.mu.Unlock()
	if short {
		q.spawn()
	} else {
		q.ready.Signal()
	}
	<-goOn
}

// place is what a running job has of its queue.
type place struct {
	queue *queue
	since time.Time // when its turn began
}

// giveWay lets others run when the job had its turn. A nil place is that of a request
// that is no job.
func (p *place) giveWay() {
	if p == nil || time.Since(p.since) < turnTime {
		return
	}
	p.queue.giveWay()
	p.since = time.Now()
}

// take removes j if nobody has begun it.
func (q *queue) take(l *lane, j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := -1
	for i := range l.waiting {
		if l.waiting[i] == j {
			at = i
		}
	}
	if at < 0 {
		return false
	}
	l.waiting = append(l.waiting[:at], l.waiting[at+1:]...)
	q.mu.length--
	if len(l.waiting) == 0 {
		for i := range q.mu.turn {
			if q.mu.turn[i] == l {
				q.mu.turn = append(q.mu.turn[:i], q.mu.turn[i+1:]...)
				break
			}
		}
	}
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
