package places

import (
	"net"
	"testing"
	"time"
)

// Who has not been heard of longest loses its place; who is being answered keeps it.
func TestPlacesGoToWhoeverIsHeardOf(t *testing.T) {
	conns := make([]net.Conn, 5)
	for i := range conns {
		conns[i] = &net.TCPConn{}
	}
	p, now := NewSet(3), time.Unix(1000, 0)
	tick := func() time.Time { now = now.Add(time.Second); return now }
	take := func(conn, want net.Conn, ok bool) {
		t.Helper()
		if lost, got := p.Take(conn, Idle, tick()); lost != want || got != ok {
			t.Errorf("lost %p, %v; want %p, %v", lost, got, want, ok)
		}
	}
	for _, c := range conns[:3] {
		take(c, nil, true)
	}
	p.Set(conns[0], Busy, tick())
	take(conns[3], conns[1], true)
	p.Set(conns[0], Idle, tick()) // now heard of last
	take(conns[4], conns[2], true)
	for _, c := range []net.Conn{conns[0], conns[3], conns[4], conns[1]} {
		p.Set(c, Busy, tick())
	}
	take(conns[1], nil, false)
	p.Leave(conns[2]) // has none
	take(conns[1], nil, false)
	p.Leave(conns[3])
	take(conns[1], nil, true)
}

// from is a connection of an address.
type from struct {
	net.Conn
	addr net.TCPAddr
}

func (f *from) RemoteAddr() net.Addr { return &f.addr }

// Whoever has the most loses first, what is owed before what is idle, and somebody who is
// settled only to the same address or one with less.
func TestPlacesAreDividedBetweenAddresses(t *testing.T) {
	now := time.Unix(1000, 0)
	conn := func(ip string) net.Conn { return &from{addr: net.TCPAddr{IP: net.ParseIP(ip), Port: 1}} }
	s := NewSet(4)
	take := func(what string, c net.Conn, state State, want net.Conn, ok bool) {
		t.Helper()
		now = now.Add(time.Second)
		if lost, got := s.Take(c, state, now); lost != want || got != ok {
			t.Errorf("%s: lost %v, %v; want %v, %v", what, lost, got, want, ok)
		}
	}
	early := conn("10.0.0.1")
	many := []net.Conn{conn("10.0.0.2"), conn("10.0.0.2"), conn("10.0.0.2")}
	take("room", early, Pending, nil, true)
	for _, c := range many {
		take("room", c, Pending, nil, true)
	}
	third := conn("10.0.0.3")
	take("the oldest of the address with the most", third, Settled, many[0], true)
	s.Set(early, Settled, now)
	s.Set(many[1], Idle, now)
	take("pending before idle", conn("10.0.0.4"), Settled, many[2], true)
	take("idle before settled", conn("10.0.0.5"), Settled, many[1], true)
	if s.Crowded() {
		t.Error("crowded before a connection was refused")
	}
	take("all are settled, and no address has more", conn("10.0.0.6"), Settled, nil, false)
	again := conn("10.0.0.3")
	take("settled, of the same address", again, Settled, third, true)
	s.Leave(third) // which has lost its place before
	if !s.Crowded() {
		t.Error("not crowded, and no place was freed")
	}
	if s.Leave(early); s.Crowded() {
		t.Error("crowded beside a free place")
	}
	more := conn("10.0.0.3")
	take("room", more, Settled, nil, true)
	take("settled, of an address with more", conn("10.0.0.6"), Settled, again, true)
	s.Set(more, Busy, now)
	take("busy", conn("10.0.0.3"), Settled, nil, false)
	take("hosts of one IPv6 network", conn("2001:db8::1"), Settled, nil, false)
	if a, b := addressOf(conn("2001:db8::1")), addressOf(conn("2001:db8::2")); a != b || a == addressOf(conn("2001:db8:0:1::1")) {
		t.Error("an address of IPv6 is its network")
	}
	for c := range s.mu.taken {
		s.Leave(c)
	}
	if len(s.mu.of) > 0 || len(s.mu.taken) > 0 {
		t.Errorf("%v, %v stay", s.mu.of, s.mu.taken)
	}
}
