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

// Limits of the peers' port. They are generous guesses: a member has one connection for the index
// and a few for bytes.
const (
	maxConnections = 16 << 10
	maxHandshakes  = 128 // at the same time; strangers and addresses of members have separate limits
	handshakeTime  = 5 * time.Second
	handshakeGrace = time.Second // a handshake takes milliseconds
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 1 << 20
	readTime       = 10 * time.Second // per request
	writeTime      = 30 * time.Second // per answer, unless the handler sets a deadline
	idleTime       = time.Minute
	drainTime      = 5 * time.Second // for answers in progress when the port closes
)

// port is the peers' port. It accepts and authenticates connections. A fasthttp.Server then serves
// them.
type port struct {
	listener net.Listener
	server   *fasthttp.Server
	creds    *credentials            // nil = no TLS
	below    func(net.Conn) net.Conn // nil = no wrapper
	log      zerolog.Logger
	ready    chan net.Conn // authenticated connections
	closed   chan struct{}

	gate    *gate         // bounds connections during the handshake
	most    int           // limit of accepted connections
	refused atomic.Uint64 // failed or late handshakes
	full    atomic.Uint64 // connections closed because of most

	mu struct {
		sync.Mutex
		ending   bool
		accepted map[net.Conn]*tls.Conn // at most most; nil value = no TLS
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

// framed passes a request to the handler only if it is unambiguous where the request ends.
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

// refuse answers with a code only. It avoids ctx.Error, which adds fasthttp's Date header: that
// header costs a goroutine for the life of the process.
func refuse(ctx *fasthttp.RequestCtx, status int, code string) {
	ctx.Response.SetStatusCode(status)
	ctx.SetContentType("text/plain")
	ctx.Response.SetBodyString(code + "\n")
}

// printer receives fasthttp's log. It writes at debug level, since the lines are about input from
// peers.
type printer struct{ log zerolog.Logger }

func (p printer) Printf(format string, args ...any) { p.log.Debug().Msgf(format, args...) }

// run serves until the context ends. Then it waits for answers in progress, for at most drainTime.
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
	_ = p.server.ShutdownWithContext(drain) // also closes idle connections
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
			// Probably out of descriptors: wait until connections end.
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
		p.log.Debug().Err(err).Stringer("from", conn.RemoteAddr()).Msg("peers' port: handshake failed")
		_ = conn.Close()
		return
	}
	p.admit(conn, secure)
}

// admit passes an authenticated connection to the server, or closes it if there is no room.
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

// recheck closes the connections of peers whose certificates are no longer accepted.
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

// connections returns the number of open authenticated connections.
func (p *port) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.accepted)
}

// checked is the listener of the server. It returns connections that are authenticated.
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

// plainConn and secureConn remove themselves from the accepted connections when they are closed.
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

// PeerName returns the name in the certificate of the client that sent a request; "" without TLS.
func PeerName(ctx *fasthttp.RequestCtx) string {
	cs := ctx.TLSConnectionState()
	if cs == nil || len(cs.PeerCertificates) == 0 || len(cs.PeerCertificates[0].DNSNames) == 0 {
		return ""
	}
	return cs.PeerCertificates[0].DNSNames[0]
}
