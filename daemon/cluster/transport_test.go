package cluster

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
)

// pipeFrom is one end of a pipe that comes from an address, and the other end.
func pipeFrom(address string) (net.Conn, net.Conn) {
	ours, theirs := net.Pipe()
	return placed{ours, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}, theirs
}

type placed struct {
	net.Conn
	from net.Addr
}

func (p placed) RemoteAddr() net.Addr { return p.from }

// closed reports whether the other end of a pipe is closed; it waits for nobody.
func closed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Unix(1, 0))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// enterFrom enters with a connection and returns the far end.
func enterFrom(t *testing.T, g *gate, address string) (*guest, net.Conn) {
	t.Helper()
	ours, theirs := pipeFrom(address)
	v, ok := g.enter(ours)
	if !ok {
		t.Fatal("the gate is closed")
	}
	return v, theirs
}

func TestAStrangerLosesItsOwnOldestConnections(t *testing.T) {
	g := newGate(bounds{conns: 8, connsEach: 3}, bounds{})
	g.known = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.9") }
	member, memberEnd := enterFrom(t, g, "10.0.0.9:1")
	quiet, quietEnd := enterFrom(t, g, "10.0.0.2:1")
	var ends []net.Conn
	for range 20 {
		_, end := enterFrom(t, g, "10.0.0.1:1")
		ends = append(ends, end)
	}
	for i, end := range ends {
		if closed(end) != (i < 17) {
			t.Errorf("connection %d of 20 is closed: %v", i, closed(end))
		}
	}
	// From many addresses: all places are taken, and the members' are others.
	for i := range 20 {
		enterFrom(t, g, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 1).String())
	}
	if n, _ := g.outside(); n != 8+1 {
		t.Errorf("%d connections, want 8 of strangers and one of a member", n)
	}
	if closed(memberEnd) || member.room == nil {
		t.Error("strangers have ended a member's connection")
	}
	if g.ended.Load() != 17+16 {
		t.Errorf("%d were counted", g.ended.Load())
	}
	g.leave(quiet)
	g.leave(quiet)
	_ = quietEnd.Close()
	g.close()
	if !closed(memberEnd) {
		t.Error("a connection outlives the gate")
	}
	if _, ok := g.enter(member.Conn); ok {
		t.Error("a gate that is closed lets in")
	}
}

// Addresses of one IPv6 host count together, and one that is written as IPv6 for IPv4 as that.
func TestAddressesThatOneHostHasCountTogether(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:1": "10.0.0.1/32", "[::ffff:10.0.0.1]:1": "10.0.0.1/32", "[2001:db8::1]:1": "2001:db8::/64", "[2001:db8:0:0:9::1]:1": "2001:db8::/64",
		"[fe80::1%lo]:1": "fe80::/64",
	} {
		conn, _ := pipeFrom(address)
		if got := shareOf(addressOf(conn)).String(); got != want {
			t.Errorf("%s counts as %s, want %s", address, got, want)
		}
	}
}

func TestBytesThatAreNotAuthenticatedAreBounded(t *testing.T) {
	g := newGate(bounds{conns: 8, connsEach: 4, bytes: 100, bytesEach: 60}, bounds{conns: 1, bytes: 50})
	a, _ := enterFrom(t, g, "10.0.0.1:1")
	b, bEnd := enterFrom(t, g, "10.0.0.1:2")
	c, cEnd := enterFrom(t, g, "10.0.0.2:1")
	if !g.grow(a, 20) || !g.grow(b, 40) || g.grow(a, 1) {
		t.Error("an address has 60 bytes")
	}
	if !g.grow(c, 30) || closed(bEnd) {
		t.Error("there is room for 30 more")
	}
	// The largest connection of the address that uses most gives way to another address.
	if !g.grow(c, 30) || !closed(bEnd) || g.grow(b, 1) {
		t.Error("who uses most does not give way")
	}
	if g.grow(c, 1) || closed(cEnd) {
		t.Error("an address has 60 bytes, and is told so")
	}
	if g.admit(c) {
		t.Error("60 bytes are in a room of 50")
	}
	if !g.admit(a) {
		t.Error("20 bytes find no room inside")
	}
	if n, bytes := g.outside(); n != 1 || bytes != 60 {
		t.Errorf("%d connections and %d bytes are outside", n, bytes)
	}
	d, _ := enterFrom(t, g, "10.0.0.3:1")
	if g.admit(d) {
		t.Error("two are in a room for one")
	}
	for _, v := range []*guest{a, c, d} {
		g.leave(v)
	}
	if n, bytes := g.outside(); n != 0 || bytes != 0 || g.mu.inside.n != 0 || g.mu.inside.used != 0 || !g.admitNew(t) {
		t.Errorf("%d connections and %d bytes are left", n, bytes)
	}
}

func (g *gate) admitNew(t *testing.T) bool {
	v, _ := enterFrom(t, g, "10.0.0.4:1")
	return g.admit(v)
}

// quietTransport is one that listens nowhere.
func quietTransport(t *testing.T) *transport {
	t.Helper()
	ring, err := newRing([][]byte{keyOf('a')})
	must(t, err)
	return &transport{
		label: "test", ring: ring, now: time.Now, log: zerolog.Nop(), streams: make(chan net.Conn), closed: make(chan struct{}),
		gate: newGate(bounds{conns: 8, connsEach: 8, bytes: 1 << 20, bytesEach: 1 << 20}, bounds{conns: 8, bytes: 1 << 20}),
	}
}

// announcing is the head of a stream that announces n bytes.
func announcing(label string, n uint32) []byte {
	b := append([]byte{typeLabel, byte(len(label))}, label...)
	return binary.BigEndian.AppendUint32(append(b, typeSealed), n)
}

func TestWhatAStreamIsRefusedFor(t *testing.T) {
	for name, row := range map[string]struct {
		says []byte
		each time.Duration // between bytes
		kind refusalKind
		want string
		ends time.Duration // at most
	}{
		"nothing":                  {nil, 0, slow, "timed out", helloTime},
		"a head byte by byte":      {announcing("test", 100), helloTime / 8, slow, "timed out", helloTime},
		"a body byte by byte":      {append(announcing("test", 100), make([]byte, 99)...), messageTime / 80, slow, "timed out", messageTime},
		"another cluster":          {announcing("other", 100), 0, unauthenticated, "another cluster", 0},
		"no label":                 {[]byte{typeSealed, 0, 0, 0, 99}, 0, unauthenticated, "another cluster", 0},
		"no key":                   {append(announcing("test", 0)[:6], typePushPull), 0, unauthenticated, "not encrypted", 0},
		"HTTP":                     {[]byte("GET / HTTP/1.1\r\n\r\n"), 0, foreign, "", 0},
		"TLS":                      {[]byte{22, 3, 1, 0, 200, 1}, 0, foreign, "", 0},
		"a byte above the bound":   {announcing("test", maxState+1), 0, tooLong, "announces 4194305 bytes", 0},
		"fewer than a seal has":    {announcing("test", sealedExtra-1), 0, tooLong, "announces 28 bytes", 0},
		"what no key of ours made": {append(announcing("test", 64), make([]byte, 64)...), 0, unauthenticated, "not in this node's keyring", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := quietTransport(t)
				ours, theirs := pipeFrom("10.0.0.1:1")
				begun := time.Now()
				go x.receive(ours)
				for i := range row.says {
					time.Sleep(row.each)
					if _, err := theirs.Write(row.says[i : i+1]); err != nil {
						break // it is refused already
					}
				}
				if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("the stream is not closed: %v", err)
				}
				took := time.Since(begun)
				synctest.Wait()
				if got := x.refused[row.kind].Load(); got != 1 || took > row.ends+row.each {
					t.Errorf("%d of that kind after %v; counted %+v", got, took, x.status())
				}
				rejected := x.rejected.list(x.now())
				if (len(rejected) == 1) != (row.kind == unauthenticated) || len(rejected) == 1 && !strings.Contains(rejected[0].Why, row.want) {
					t.Errorf("%+v", rejected)
				}
				if n, bytes := x.gate.outside(); n != 0 || bytes != 0 {
					t.Errorf("%d streams and %d bytes are left", n, bytes)
				}
			})
		})
	}
}

// What a stream announces costs nothing before it has come.
func TestAnnouncedBytesTakeNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := quietTransport(t)
		ours, theirs := pipeFrom("10.0.0.1:1")
		go x.receive(ours)
		if _, err := theirs.Write(append(announcing("test", maxState), make([]byte, 1000)...)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, bytes := x.gate.outside(); n != 1 || bytes > 8<<10 {
			t.Errorf("%d streams with %d bytes for 1,000 that came", n, bytes)
		}
		_ = theirs.Close()
		synctest.Wait()
		if s := x.status(); s.Open != 0 || s.Bytes != 0 || s.NoRoom+s.Slow+s.TooLong+s.Unauthenticated != 0 {
			t.Errorf("who goes away is refused: %+v", s)
		}
	})
}

func TestRejectedAddressesAreBoundedAndForgotten(t *testing.T) {
	var r rejected
	now := epoch
	for i := range 3 * maxRejected {
		now = now.Add(time.Millisecond)
		r.note(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "why", now)
	}
	last := netip.AddrFrom4([4]byte{10, 0, 0, 3*maxRejected - 1})
	r.note(last, "another", now.Add(time.Second))
	list := r.list(now)
	if x := list[len(list)-1]; len(list) != maxRejected || x.Address != last || x.Times != 2 || x.Why != "another" || !x.Since.Equal(now) || !x.Last.Equal(now.Add(time.Second)) {
		t.Errorf("%d, the last %+v", len(list), x)
	}
	if list := r.list(now.Add(rejectedLife + time.Second)); len(list) != 1 {
		t.Errorf("%d are remembered after their time", len(list))
	}
}

// stateful is a member's delegate whose state has so many bytes.
type stateful struct {
	memberlist.Delegate
	bytes int
}

func (s stateful) LocalState(bool) []byte {
	b := make([]byte, s.bytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// A state of the largest cluster passes, and is what it was; one above the bound does not.
func TestStatesOfLargeClustersPass(t *testing.T) {
	for _, row := range []struct {
		name  string
		bytes int
		ok    bool
	}{{"as much as a stream may have", maxState - 4<<10, true}, {"a little more", maxState + 1, false}} {
		t.Run(row.name, func(t *testing.T) {
			b := newBed(t)
			tuned := func(change func(*memberlist.Config)) func(*Config) {
				return func(c *Config) {
					tune := c.tune
					c.tune = func(m *memberlist.Config) { tune(m); m.TCPTimeout = patience; change(m) }
				}
			}
			a := b.start("a", []string{"127.0.0.1:1"}, tuned(func(*memberlist.Config) {}))
			d := b.start("d", []string{"127.0.0.1:1"}, tuned(func(m *memberlist.Config) {
				m.Delegate, m.PushPullInterval = stateful{m.Delegate, row.bytes}, 0
			}))
			join := func() {
				if _, err := d.list.Join([]string{a.address()}); err == nil && !row.ok {
					t.Error("joined")
				}
			}
			join()
			// On a busy machine a stream can end before its length is seen.
			if row.ok {
				eventually(t, "they know each other", func() bool {
					known := a.knows("d") && d.knows("a")
					if !known {
						join()
					}
					return known
				})
				return
			}
			eventually(t, "it is counted", func() bool {
				if a.Status().Streams.TooLong == 0 {
					join()
				}
				return a.Status().Streams.TooLong > 0
			})
			if a.knows("d") {
				t.Error("it is a member all the same")
			}
		})
	}
}

// Strangers that connect and say nothing do not keep members from each other, nor does
// the port take descriptors for all of them.
func TestIdleStreamsDoNotKeepMembersOut(t *testing.T) {
	for _, insecure := range []bool{false, true} {
		b := newBed(t)
		change := func(c *Config) {
			if insecure {
				c.Keyring, c.Insecure = "", true
			}
		}
		a := b.start("a", []string{"127.0.0.1:1"}, change)
		var idle []net.Conn
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		for range 4 * maxStreams {
			conn, err := dialer.Dial("tcp", a.address())
			must(t, err)
			idle = append(idle, conn)
			if s := a.Status().Streams; s.Open > maxStreams/4 {
				t.Fatalf("%d streams of one address are open", s.Open)
			}
		}
		eventually(t, "the first ones are ended", func() bool { return a.Status().Streams.NoRoom >= 3*maxStreams })
		d := b.start("d", []string{a.address()}, change)
		eventually(t, "a member joins", func() bool { return a.knows("d") && d.knows("a") })
		for _, conn := range idle {
			_ = conn.Close()
		}
	}
}

func TestPacketsAreBounded(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	conn, err := net.Dial("udp", a.address())
	must(t, err)
	defer conn.Close()
	if _, err := conn.Write(make([]byte, maxPacket+1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is counted", func() bool { return a.Status().Streams.TooLong == 1 })
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "they know each other", func() bool { return a.knows("d") && d.knows("a") })
}
