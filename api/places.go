package api

import (
	"net"
	"sync"
	"time"
)

// places are the connections of one listener. When all are taken a new connection
// gets that of the one which has waited longest for its next request; one whose
// request is being answered keeps its place. Whoever opens many connections and says
// nothing so closes his own, and does not lock others out.
type places struct {
	most int

	mu struct {
		sync.Mutex
		held map[net.Conn]*place
	}
}

// place is one connection's. It is guarded by the lock of its places.
type place struct {
	since time.Time // it waits for a request
	busy  bool      // a request of it is being answered
}

func newPlaces(most int) *places {
	p := &places{most: most}
	p.mu.held = map[net.Conn]*place{}
	return p
}

// take gives a connection a place. The caller closes the one that has lost its, if
// any. It is false when all others are busy.
func (p *places) take(conn net.Conn, now time.Time) (lost net.Conn, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.held) >= p.most {
		for c, at := range p.mu.held {
			if !at.busy && (lost == nil || at.since.Before(p.mu.held[lost].since)) {
				lost = c
			}
		}
		if lost == nil {
			return nil, false
		}
		delete(p.mu.held, lost)
	}
	p.mu.held[conn] = &place{since: now}
	return lost, true
}

// leave gives the place back, if the connection still has one.
func (p *places) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.held, conn)
}

// answering notes that a request of the connection is being answered, or that its
// answer was sent.
func (p *places) answering(conn net.Conn, busy bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.mu.held[conn]; at != nil {
		at.busy, at.since = busy, now
	}
}
