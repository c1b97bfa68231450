// Package places bounds how many connections a listener serves, and divides the places between
// remote addresses. A client that opens many idle connections loses them to new connections, so
// that it cannot lock other clients out. The caller closes the connections that lose their place.
package places

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// State says how a connection may lose its place to a new one.
type State uint8

const (
	// Pending connections have not yet sent what an honest peer sends at once: a handshake or
	// a subscription. They lose their place first, oldest first.
	Pending State = iota
	// Idle connections wait for a next request. A client that loses one has to reconnect.
	Idle
	// Settled connections are in use although they may send nothing. A Settled connection loses its
	// place to a new connection from its own address. It also loses it to one from another address
	// if, even with the new connection, that address has fewer places than its own.
	Settled
	// Busy connections keep their place.
	Busy
)

// Set is the places of one listener. Its methods may run concurrently.
type Set struct {
	most int

	mu struct {
		sync.Mutex
		taken map[net.Conn]*place
		of    map[netip.Prefix]int // places by address

		crowded bool
	}
}

type place struct {
	from  netip.Prefix
	state State
	since time.Time // the last sign of life
}

// NewSet returns a set with the given number of places.
func NewSet(most int) *Set {
	s := &Set{most: most}
	s.mu.taken, s.mu.of = map[net.Conn]*place{}, map[netip.Prefix]int{}
	return s
}

// Take gives a connection a place in the given state. If the set is full, another connection loses
// its place, and the caller closes that connection. If no connection may lose its place, Take
// returns false. Among the connections that may, Take chooses by three rules: the lowest state,
// then the address with the most places, then the longest time without a sign of life.
func (s *Set) Take(conn net.Conn, state State, now time.Time) (lost net.Conn, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := addressOf(conn)
	if len(s.mu.taken) >= s.most {
		if lost = s.weakestLocked(from); lost == nil {
			s.mu.crowded = true
			return nil, false
		}
		s.leaveLocked(lost)
	}
	s.mu.taken[conn] = &place{from, state, now}
	s.mu.of[from]++
	return lost, true
}

// weakestLocked returns the connection that loses its place to a new connection from an address. It
// returns nil if no connection may lose its place.
func (s *Set) weakestLocked(from netip.Prefix) (weakest net.Conn) {
	var w *place
	for conn, p := range s.mu.taken {
		switch {
		case p.state == Busy, p.state == Settled && p.from != from && s.mu.of[p.from] <= s.mu.of[from]+1:
			continue
		case w == nil:
		case p.state != w.state:
			if p.state > w.state {
				continue
			}
		case s.mu.of[p.from] != s.mu.of[w.from]:
			if s.mu.of[p.from] < s.mu.of[w.from] {
				continue
			}
		case !p.since.Before(w.since):
			continue
		}
		weakest, w = conn, p
	}
	return weakest
}

// Set records a sign of life of a connection, and its state, if it still has its place.
func (s *Set) Set(conn net.Conn, state State, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.mu.taken[conn]; p != nil {
		p.state, p.since = state, now
	}
}

// Leave frees the place of a connection, if it still has one.
func (s *Set) Leave(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaveLocked(conn) {
		s.mu.crowded = false
	}
}

// Crowded reports whether Take has failed and no place was freed since.
func (s *Set) Crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.crowded
}

func (s *Set) leaveLocked(conn net.Conn) bool {
	p := s.mu.taken[conn]
	if p == nil {
		return false
	}
	delete(s.mu.taken, conn)
	if s.mu.of[p.from]--; s.mu.of[p.from] == 0 {
		delete(s.mu.of, p.from)
	}
	return true
}

// addressOf returns the remote address of a connection; for IPv6 its /64 network, which one
// host usually owns. Connections without an address share one value.
func addressOf(conn net.Conn) netip.Prefix {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := tcp.AddrPort().Addr().Unmap()
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
