package cluster

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// gate bounds unauthenticated connections and the bytes read from them. Addresses of members have a
// separate budget, so that strangers at other addresses cannot lock members out. When a budget is
// exhausted, the address that uses most of it loses its oldest connection. That one is probably
// idle, since authenticating a member takes milliseconds.
//
//	strangers ─┐
//	           ├─ authenticated ─► inside (never closed to make room)
//	members ───┘
type gate struct {
	// known reports whether an address belongs to a member; nil = no address does.
	known func(netip.Addr) bool
	// grace protects members that share an address. A new connection from a member's address does not
	// displace a connection from the same address that is younger than grace. Members authenticate
	// within grace.
	grace time.Duration
	now   func() time.Time
	ended atomic.Uint64 // connections that were closed or rejected for lack of room

	mu struct {
		sync.Mutex
		closed                     bool
		strangers, members, inside room
	}
}

// bounds limits the connections and bytes of a room, in total and per address.
type bounds struct {
	conns, connsEach int
	bytes, bytesEach int
}

type room struct {
	bounds
	n, used int
	shares  map[netip.Prefix]*share
}

// share lists the connections that are accounted to one address.
type share struct {
	guests []*guest // oldest first
	used   int
}

// guest is a connection in a room.
type guest struct {
	net.Conn
	from  netip.Addr
	share netip.Prefix
	room  *room // guarded by the gate; nil = it was closed to make room, or has left
	used  int   // bytes; guarded by the gate
	since time.Time
}

func newGate(outside, inside bounds) *gate {
	g := &gate{now: time.Now}
	for r, b := range map[*room]bounds{&g.mu.strangers: outside, &g.mu.members: outside, &g.mu.inside: inside} {
		r.bounds, r.shares = b, map[netip.Prefix]*share{}
	}
	return g
}

// shareOf returns the prefix that an address is accounted to. For IPv6 that is the /64, since one
// host usually owns a whole /64.
func shareOf(a netip.Addr) netip.Prefix {
	if a.Is4() || !a.IsValid() {
		return netip.PrefixFrom(a, 32)
	}
	p, _ := a.Prefix(64)
	return p
}

func addressOf(conn net.Conn) netip.Addr {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return from.Addr().Unmap().WithZone("")
}

// enter registers a connection. It returns false after close, or if the new connection would have
// to displace another one that grace protects. The caller must pass the returned guest to leave or
// admit.
func (g *gate) enter(conn net.Conn) (*guest, bool) {
	v := &guest{Conn: conn, from: addressOf(conn), since: g.now()}
	v.share = shareOf(v.from)
	known := g.known != nil && g.known(v.from)
	g.mu.Lock()
	if g.mu.closed {
		g.mu.Unlock()
		return nil, false
	}
	v.room = &g.mu.strangers
	if known {
		v.room = &g.mu.members
	}
	var ended *guest
	if s := v.room.shares[v.share]; s != nil && len(s.guests) >= v.room.connsEach {
		ended = s.guests[0]
	} else if v.room.n >= v.room.conns {
		ended = v.room.most(func(s *share) int { return len(s.guests) }).guests[0]
	}
	if ended != nil && known && ended.share == v.share && v.since.Sub(ended.since) < g.grace {
		g.mu.Unlock()
		g.ended.Add(1)
		return nil, false
	}
	if ended != nil {
		ended.leaveLocked()
	}
	v.room.add(v)
	g.mu.Unlock()
	if ended != nil {
		g.end(ended)
	}
	return v, true
}

// end closes a connection that has made room for another one.
func (g *gate) end(v *guest) {
	g.ended.Add(1)
	_ = v.Close()
}

// grow reserves n bytes for a connection, and closes connections of other addresses if necessary.
// It returns false if there is no room, or if the connection itself was closed to make room.
func (g *gate) grow(v *guest, n int) bool {
	g.mu.Lock()
	r := v.room
	if r == nil || r.shares[v.share].used+n > r.bytesEach {
		g.mu.Unlock()
		return false
	}
	var ended []*guest
	for r.used+n > r.bytes {
		most := r.most(func(s *share) int { return s.used })
		if most == r.shares[v.share] {
			break
		}
		largest := slices.MaxFunc(most.guests, func(a, b *guest) int { return a.used - b.used })
		largest.leaveLocked()
		ended = append(ended, largest)
	}
	ok := r.used+n <= r.bytes
	if ok {
		v.used += n
		r.used += n
		r.shares[v.share].used += n
	}
	g.mu.Unlock()
	for _, other := range ended {
		g.end(other)
	}
	return ok
}

// admit moves an authenticated connection and its bytes to the inner room. It returns false if that
// room is full, or if the connection was closed to make room.
func (g *gate) admit(v *guest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := &g.mu.inside
	if v.room == nil || in.n >= in.conns || in.used+v.used > in.bytes {
		return false
	}
	used := v.used
	v.leaveLocked()
	v.room, v.used = in, used
	in.add(v)
	return true
}

// leave releases the place and bytes of a connection. It is idempotent.
func (g *gate) leave(v *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v.leaveLocked()
}

// close closes all unauthenticated connections and rejects new ones.
func (g *gate) close() {
	g.mu.Lock()
	g.mu.closed = true
	var all []*guest
	for _, r := range []*room{&g.mu.strangers, &g.mu.members} {
		for _, s := range r.shares {
			all = append(all, s.guests...)
		}
	}
	g.mu.Unlock()
	for _, v := range all {
		_ = v.Close()
	}
}

// outside returns the number of unauthenticated connections and the bytes read from them.
func (g *gate) outside() (conns, bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.strangers.n + g.mu.members.n, g.mu.strangers.used + g.mu.members.used
}

// most returns the share with the highest measure; nil = the room is empty.
func (r *room) most(measure func(*share) int) (most *share) {
	for _, s := range r.shares {
		if most == nil || measure(s) > measure(most) {
			most = s
		}
	}
	return most
}

func (r *room) add(v *guest) {
	s := r.shares[v.share]
	if s == nil {
		s = &share{}
		r.shares[v.share] = s
	}
	s.guests = append(s.guests, v)
	s.used += v.used
	r.n++
	r.used += v.used
}

func (v *guest) leaveLocked() {
	r := v.room
	if r == nil {
		return
	}
	s := r.shares[v.share]
	s.guests = slices.DeleteFunc(s.guests, func(other *guest) bool { return other == v })
	s.used -= v.used
	r.n--
	r.used -= v.used
	if len(s.guests) == 0 {
		delete(r.shares, v.share)
	}
	v.room, v.used = nil, 0
}

// places returns a limit for connections of one purpose. The limit is the parameter most, but no
// more than the process's descriptor limit divided by the parameter part, so that descriptors
// remain for engines, and no less than 4.
func places(most, part int) int {
	limit := settings.DescriptorLimit()
	if limit == 0 {
		return most
	}
	return max(4, min(most, limit/part))
}
