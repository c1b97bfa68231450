package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/api/framing"
)

// Bounds of the peers' port. Guessed, with room: a member has a connection for the index
// and some for bytes.
const (
	maxConnections = 16 << 10
	maxHandshakes  = 128 // at once, of strangers and again of members' addresses
	handshakeTime  = 5 * time.Second
	handshakeGrace = time.Second // a handshake takes milliseconds
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 1 << 20
	readTime       = 10 * time.Second // of one request
	writeTime      = 30 * time.Second // of one answer, where a handler sets no deadlines of its own
	idleTime       = time.Minute
	drainTime      = 5 * time.Second // for answers in progress at the end
)

// port is the peers' port: it accepts connections, checks who they are of and has a
// fasthttp.Server answer them.
type port struct {
	listener net.Listener
	server   *fasthttp.Server
	creds    *credentials            // nil = plain
	below    func(net.Conn) net.Conn // nil = nothing
	log      zerolog.Logger
	ready    chan net.Conn // checked connections
	closed   chan struct{}

	gate    *gate         // of handshakes
	most    int           // connections that are accepted
	refused atomic.Uint64 // handshakes that failed, or had no time
	full    atomic.Uint64 // connections beyond the bound

	mu struct {
		sync.Mutex
		ending   bool
		accepted map[net.Conn]*tls.Conn // at most most; nil = plain
	}
}

func newPort(l net.Listener, creds *credentials, handler fasthttp.RequestHandler, log zerolog.Logger) *port {
	p := &port{listener: l, creds: creds, log: log, ready: make(chan net.Conn), closed: make(chan struct{}), most: places(maxConnections, 2)}
	n := places(maxHandshakes, 16)
	p.gate = newGate(bounds{conns: n, connsEach: max(2, n/4)}, bounds{})
	p.gate.grace, p.gate.mu.members.connsEach = handshakeGrace, n // many members may share an address
	p.mu.accepted = map[net.Conn]*tls.Conn{}
	p.server = &fasthttp.Server{
		Handler: framed(handler), DisablePreParseMultipartForm: true, Concurrency: maxConnections, ReadBufferSize: maxHeaderBytes, MaxRequestBodySize: maxBodyBytes,
		ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxIdleWorkerDuration: time.Second,
		ErrorHandler:          func(ctx *fasthttp.RequestCtx, _ error) { refuse(ctx, fasthttp.StatusBadRequest, "invalid") },
		NoDefaultServerHeader: true, NoDefaultDate: true, CloseOnShutdown: true, Logger: printer{log},
	}
	return p
}

// framed has a handler answer only requests whose end is certain.
func framed(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		if framing.Check(&ctx.Request.Header) != nil {
			refuse(ctx, fasthttp.StatusBadRequest, "invalid")
			ctx.SetConnectionClose()
			return
		}
		handler(ctx)
	}
}

// refuse answers with a code alone. (Error of ctx would bring back fasthttp's Date, which
// costs a goroutine for the life of the process.)
func refuse(ctx *fasthttp.RequestCtx, status int, code string) {
	ctx.Response.SetStatusCode(status)
	ctx.SetContentType("text/plain")
	ctx.Response.SetBodyString(code + "\n")
}

// printer is what fasthttp logs to: what peers make it say is for debugging.
type printer struct{ log zerolog.Logger }

func (p printer) Printf(format string, args ...any) { p.log.Debug().Msgf(format, args...) }

// run serves until the context ends, then waits drainTime for answers in progress.
func (p *port) run(ctx context.Context) {
	var all, serving sync.WaitGroup
	all.Go(func() { p.accept(&all) })
	serving.Go(func() { _ = p.server.Serve(checked{p}) })
	<-ctx.Done()
	_ = p.listener.Close()
	p.mu.Lock()
	p.mu.ending = true
	p.mu.Unlock()
	p.gate.close()
	close(p.closed)
	all.Wait()
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	_ = p.server.ShutdownWithContext(drain) // ends idle connections
	p.closeAll(func(*tls.Conn) bool { return true })
	serving.Wait()
}

func (p *port) accept(all *sync.WaitGroup) {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: connections that end give some back.
			select {
			case <-p.closed:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if p.creds == nil {
			all.Go(func() { p.admit(conn, nil) })
			continue
		}
		guest, ok := p.gate.enter(conn)
		if !ok {
			_ = conn.Close()
			continue
		}
		all.Go(func() { p.handshake(guest) })
	}
}

func (p *port) handshake(guest *guest) {
	conn := guest.Conn
	below := conn
	if p.below != nil {
		below = p.below(conn)
	}
	secure := tls.Server(below, p.creds.server())
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	err := secure.Handshake()
	p.gate.leave(guest)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		p.refused.Add(1)
		p.log.Debug().Err(err).Stringer("from", conn.RemoteAddr()).Msg("peers' port: no handshake")
		_ = conn.Close()
		return
	}
	p.admit(conn, secure)
}

// admit hands a connection to the server.
func (p *port) admit(conn net.Conn, secure *tls.Conn) {
	p.mu.Lock()
	full := len(p.mu.accepted) >= p.most
	refused := full || p.mu.ending
	if !refused {
		p.mu.accepted[conn] = secure
	}
	p.mu.Unlock()
	if refused {
		if full {
			p.full.Add(1)
		}
		_ = conn.Close()
		return
	}
	var served net.Conn = plainConn{conn, p}
	if secure != nil {
		served = secureConn{secure, conn, p}
	}
	select {
	case p.ready <- served:
	case <-p.closed:
		_ = served.Close()
	}
}

func (p *port) forget(conn net.Conn) {
	p.mu.Lock()
	delete(p.mu.accepted, conn)
	p.mu.Unlock()
}

// recheck closes connections of peers whose certificates are not accepted any more.
func (p *port) recheck() {
	if p.creds == nil {
		return
	}
	p.closeAll(func(secure *tls.Conn) bool {
		cs := secure.ConnectionState()
		return !p.creds.accepted(&cs)
	})
}

func (p *port) closeAll(which func(*tls.Conn) bool) {
	p.mu.Lock()
	open := make(map[net.Conn]*tls.Conn, len(p.mu.accepted))
	for conn, secure := range p.mu.accepted {
		open[conn] = secure
	}
	p.mu.Unlock()
	for conn, secure := range open {
		if which(secure) {
			_ = conn.Close()
		}
	}
}

// connections counts those that are open and checked.
func (p *port) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.accepted)
}

// checked gives the server connections whose peers are known.
type checked struct{ p *port }

func (c checked) Accept() (net.Conn, error) {
	select {
	case conn := <-c.p.ready:
		return conn, nil
	case <-c.p.closed:
		return nil, net.ErrClosed
	}
}
func (c checked) Close() error   { return nil }
func (c checked) Addr() net.Addr { return c.p.listener.Addr() }

// plainConn and secureConn are forgotten when they are closed.
type plainConn struct {
	net.Conn
	p *port
}

func (c plainConn) Close() error {
	c.p.forget(c.Conn)
	return c.Conn.Close()
}

type secureConn struct {
	*tls.Conn
	under net.Conn
	p     *port
}

func (c secureConn) Close() error {
	c.p.forget(c.under)
	return c.Conn.Close()
}

// PeerName is the name in the certificate of who sent a request; empty without TLS.
func PeerName(ctx *fasthttp.RequestCtx) string {
	cs := ctx.TLSConnectionState()
	if cs == nil || len(cs.PeerCertificates) == 0 || len(cs.PeerCertificates[0].DNSNames) == 0 {
		return ""
	}
	return cs.PeerCertificates[0].DNSNames[0]
}
