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
// Invariant: at most as many jobs run as there are workers; a reader that runs one counts.
type queue struct {
	workers int

	mu struct {
		sync.Mutex
		turn    []*lane // lanes with work, next one first
		length  int
		running int
		closed  bool
	}
	ready *sync.Cond // on mu: there is work and a worker is free, or closed
}

// lane is the waiting work of one connection, oldest first. Guarded by queue.mu.
type lane struct{ waiting []*job }

func newQueue(workers int) *queue {
	q := &queue{workers: workers}
	q.ready = sync.NewCond(&q.mu)
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
// and empty.
func (q *queue) next() (*job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.mu.turn) == 0 || q.mu.running >= q.workers {
		if q.mu.closed && len(q.mu.turn) == 0 {
			return nil, false
		}
		q.ready.Wait()
	}
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
	if len(q.mu.turn) > 0 || q.mu.running >= q.workers {
		return false
	}
	q.mu.running++
	return true
}

// leave ends next or enter.
func (q *queue) leave() {
	q.mu.Lock()
	q.mu.running--
	wanted := len(q.mu.turn) > 0
	q.mu.Unlock()
	if wanted {
		q.ready.Signal()
	}
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

// work runs jobs until the queue is closed.
func (q *queue) work() {
	s := &scratch{}
	for {
		j, ok := q.next()
		if !ok {
			return
		}
		j.conn.run(j, s, time.Now())
		q.leave()
	}
}

// shift drops the first element and keeps the array, which an append at the end
// and a reslice at the front would move through memory for ever.
func shift[T any](s []T) []T {
	n := copy(s, s[1:])
	clear(s[n:])
	return s[:n]
}
