package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
)

// startPort serves names of who asks until the test ends.
func startPort(t *testing.T, creds *credentials) *port {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := newPort(l, creds, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString("asked by " + PeerName(ctx)) }, zerolog.Nop())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.run(ctx); close(done) }()
	t.Cleanup(func() {
		stop()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the port does not stop")
		}
		eventually(t, "no connection is left", func() bool { return p.connections() == 0 })
	})
	return p
}

func (p *port) dial(t *testing.T, config *tls.Config) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", p.listener.Addr().String(), config)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// get asks on a connection and gives the body.
func get(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
		return "", err
	}
	var response fasthttp.Response
	err := response.ReadLimitBody(bufio.NewReader(conn), 1<<10)
	return string(response.Body()), err
}

func TestThePortKnowsWhoAsks(t *testing.T) {
	p := startPort(t, issued(t, "c", "s", wallClock, keyOf('a')))
	d := issued(t, "c", "d", wallClock, keyOf('a'))
	if body, err := get(p.dial(t, d.client("s"))); err != nil || body != "asked by d" {
		t.Errorf("%q, %v", body, err)
	}
}

// Whoever opens connections and says nothing must not keep peers out.
func TestSilentConnectionsDoNotKeepPeersOut(t *testing.T) {
	p := startPort(t, issued(t, "c", "s", wallClock, keyOf('a')))
	d := issued(t, "c", "d", wallClock, keyOf('a'))
	var silent []net.Conn
	for range 2 * maxHandshakes {
		conn, err := net.Dial("tcp", p.listener.Addr().String())
		must(t, err)
		defer conn.Close()
		silent = append(silent, conn)
	}
	if body, err := get(p.dial(t, d.client("s"))); err != nil || body != "asked by d" {
		t.Errorf("%q, %v", body, err)
	}
	// The oldest one had to make room.
	_ = silent[0].SetReadDeadline(time.Now().Add(patience))
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the oldest connection: %v", err)
	}
}

// Many members may have one address: a burst of them has all places of members, and none ends
// a handshake of another that has just begun. What says nothing makes room.
func TestMembersOfOneAddressDoNotEndEachOther(t *testing.T) {
	g := newPort(nil, nil, nil, zerolog.Nop()).gate
	now := time.Unix(1e9, 0)
	g.now, g.known = func() time.Time { return now }, func(netip.Addr) bool { return true }
	var ends []net.Conn
	for range g.mu.members.conns {
		_, end := enterFrom(t, g, "10.0.0.9:1")
		ends = append(ends, end)
	}
	ours, _ := pipeFrom("10.0.0.9:1")
	if _, ok := g.enter(ours); ok {
		t.Error("it ends a handshake that has just begun")
	}
	enterFrom(t, g, "10.0.0.8:1") // another address has its share
	now = now.Add(handshakeGrace)
	enterFrom(t, g, "10.0.0.9:1")
	enterFrom(t, g, "10.0.0.9:1")
	for i, end := range ends {
		if closed(end) != (i < 3) {
			t.Errorf("handshake %d is closed: %v", i, closed(end))
		}
	}
	if g.ended.Load() != 4 {
		t.Errorf("%d were counted", g.ended.Load())
	}
}

// A request that has a length and a coding is not answered, and ends its connection.
func TestAmbiguousFramingEndsAPeersConnection(t *testing.T) {
	p := startPort(t, nil)
	conn, err := net.Dial("tcp", p.listener.Addr().String())
	must(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	var response fasthttp.Response
	from := bufio.NewReader(conn)
	if err := response.ReadLimitBody(from, 1<<10); err != nil || string(response.Body()) != "invalid\n" {
		t.Errorf("%q, %v", response.Body(), err)
	}
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the answer: %v, want the end", err)
	}
}

func TestAConnectionEndsWithItsAuthority(t *testing.T) {
	s := issued(t, "c", "s", wallClock, keyOf('a'), keyOf('b'))
	p := startPort(t, s)
	ofA, ofB := p.dial(t, issued(t, "c", "d", wallClock, keyOf('a')).client("s")), p.dial(t, issued(t, "c", "e", wallClock, keyOf('b'), keyOf('a')).client("s"))
	for _, conn := range []net.Conn{ofA, ofB} {
		if _, err := get(conn); err != nil {
			t.Fatal(err)
		}
	}
	s.current.Store(issued(t, "c", "s", wallClock, keyOf('b')).current.Load())
	p.recheck()
	if body, err := get(ofA); err == nil {
		t.Errorf("a connection of a key that is gone: %q", body)
	}
	if body, err := get(ofB); err != nil || body != "asked by e" {
		t.Errorf("one of the key that is left: %q, %v", body, err)
	}
}

func TestAStopLetsAnswersInProgressEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	asked, answer := make(chan struct{}), make(chan struct{})
	p := newPort(l, nil, func(ctx *fasthttp.RequestCtx) {
		close(asked)
		<-answer
		ctx.SetBodyString("late")
	}, zerolog.Nop())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.run(ctx); close(done) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	got := make(chan string, 1)
	go func() {
		body, err := get(conn)
		got <- body + text(err)
	}()
	<-asked
	stop()
	<-p.closed
	close(answer)
	if body := <-got; body != "late" {
		t.Errorf("%q", body)
	}
	<-done
}

func TestCertificatesFromFilesAreReplaced(t *testing.T) {
	b := newBed(t)
	first, second := newOffice(t, "first"), newOffice(t, "second")
	put := func(node string, o *office, uses ...x509.ExtKeyUsage) {
		cert, key := o.issue(node, time.Now().Add(time.Hour), uses...)
		b.file(node+".crt", cert)
		b.file(node+".key", key)
		b.file(node+".ca", append(first.pem(), second.pem()...))
	}
	files := func(node string) func(*Config) {
		return func(c *Config) {
			c.TLSCert, c.TLSKey, c.TLSCA = filepath.Join(b.dir, node+".crt"), filepath.Join(b.dir, node+".key"), filepath.Join(b.dir, node+".ca")
		}
	}
	ofA, ofD := newSets(), newSets()
	put("a", first, bothUses...)
	put("d", first, bothUses...)
	a := b.startWith("a", ofA, []string{"127.0.0.1:1"}, files("a"))
	d := b.startWith("d", ofD, []string{a.address()}, files("d"))
	ofA.add("1")
	eventually(t, "d learns", func() bool { return d.learnt(ofD, "a") == "1" })

	put("a", second, x509.ExtKeyUsageServerAuth) // not for clients
	eventually(t, "a says that it is not good", func() bool { return strings.Contains(a.Status().FilesError, "incompatible key usage") })
	put("a", second, bothUses...)
	eventually(t, "a good one is taken", func() bool { s := a.Status(); return s.FilesError == "" && s.Reloads > 0 })
	b.file("d.ca", second.pem()) // d's own is of the first: peers would refuse it
	eventually(t, "d says that peers would refuse it", func() bool { return strings.Contains(d.Status().FilesError, "unknown authority") })
	put("d", second, bothUses...)
	b.file("d.ca", second.pem())
	eventually(t, "d has the new one", func() bool {
		return d.Status().FilesError == "" && d.creds.current.Load().cert.Leaf.Issuer.CommonName == "second"
	})
	ofA.add("2")
	ofD.add("3")
	eventually(t, "they still learn", func() bool { return d.learnt(ofD, "a") == "1 2" && a.learnt(ofA, "d") == "3" })
}

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	b := newBed(t)
	keys := b.file("keys", []byte(ringText(keyOf('a'))))
	good := Config{Name: "c", Node: "n", Seeds: []string{"s"}, Bind: loopback, Keyring: keys}
	for name, row := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"good":               {func(*Config) {}, ""},
		"no seeds":           {func(c *Config) { c.Seeds = nil }, "0 seeds"},
		"no keyring":         {func(c *Config) { c.Keyring = "" }, "no keyring"},
		"keys are not there": {func(c *Config) { c.Keyring += "x" }, "no such file"},
		"keys are no keys":   {func(c *Config) { c.Keyring = b.file("bad", []byte("x")) }, "not base64"},
		"a short secret":     {func(c *Config) { c.SecretFile = b.file("short", []byte("short")) }, "want at least 16"},
		"a hold of a second": {func(c *Config) { c.Hold = time.Second }, "hold 1s"},
		"two of three":       {func(c *Config) { c.TLSCert, c.TLSKey = "a", "b" }, "or none"},
		"no name":            {func(c *Config) { c.Name = "" }, "name"},
		"a node in capitals": {func(c *Config) { c.Node = "N" }, "DNS name"},
	} {
		c := good
		row.change(&c)
		_, err := New(c)
		if (row.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// wrapped is a connection that Config.BelowTLS has seen.
type wrapped struct{ net.Conn }

func TestConnectionsToThePeersPortAreWrappedBelowTLS(t *testing.T) {
	a := newBed(t).start("a", []string{"127.0.0.1:1"}, func(c *Config) {
		c.BelowTLS = func(conn net.Conn) net.Conn { return wrapped{conn} }
		c.Handler = func(ctx *fasthttp.RequestCtx) {
			secure, ok := ctx.Conn().(interface{ NetConn() net.Conn })
			if ok {
				_, ok = secure.NetConn().(wrapped)
			}
			ctx.SetBodyString(fmt.Sprint(ok))
		}
	})
	conn, err := tls.Dial("tcp", a.Members()[0].Peer.String(), a.ClientTLS("a"))
	must(t, err)
	defer conn.Close()
	if body, err := get(conn); err != nil || body != "true" {
		t.Errorf("the handler finds what is below TLS: %q, %v", body, err)
	}
}
