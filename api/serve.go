package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/api/places"
)

// Run accepts on all listeners until ctx ends or one of them fails, then lets responses in
// progress finish (at most drainTimeout) and closes everything, including listeners. It
// returns the failure, nil after ctx. Call it once.
//
// It accepts connections itself and passes them to fasthttp one by one: fasthttp's pool
// keeps a polling goroutine and cannot be waited for.
func (s *Server) Run(ctx context.Context, listeners ...Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var accepting, serving sync.WaitGroup
	for _, ln := range listeners {
		accepting.Go(func() {
			if err := s.accept(ctx, ln, &serving); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	var failed []error
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		failed = append(failed, err)
	}
	s.stop()
	for _, ln := range listeners {
		if err := ln.Close(); err != nil {
			failed = append(failed, fmt.Errorf("close %s: %w", ln.Addr(), err))
		}
	}
	accepting.Wait()
	s.drain(&serving)
	return errors.Join(failed...)
}

func (s *Server) accept(ctx context.Context, ln Listener, serving *sync.WaitGroup) error {
	full := s.newDoor(maxConnections, s.handler(ln.Trusted))
	full.http.HeaderReceived = s.bodyBound(ln.Trusted)
	full.http.ErrorHandler = s.unread(ln.Trusted)
	// Separate, so that clients that occupy all places cannot make a node look dead.
	probes := s.newDoor(maxProbes, s.probesOnly(s.handler(ln.Trusted)))
	probes.http.ReadTimeout, probes.http.WriteTimeout = probeTimeout, probeTimeout
	admit := func(conn net.Conn) {
		if !s.enter(full, conn, serving) && !s.enter(probes, conn, serving) {
			s.turnedAway.WithLabelValues("bound").Inc()
			conn.Close()
		}
	}
	shaking := places.NewSet(maxHandshakes)
	for {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			if !temporary(err) {
				return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
			}
			s.log.Warn().Err(err).Msg("admin listener cannot accept connections, retrying")
			pause(ctx, 100*time.Millisecond)
			continue
		}
		if secure, ok := conn.(*tls.Conn); ok {
			s.shake(shaking, secure, serving, admit)
		} else {
			admit(conn)
		}
	}
}

// shake performs the TLS handshake of a connection, in a separate set of places, and then
// admits it: a peer that does not finish takes no place from requests.
func (s *Server) shake(shaking *places.Set, conn *tls.Conn, serving *sync.WaitGroup, admit func(net.Conn)) {
	if lost, _ := shaking.Take(conn, places.Pending, time.Now()); lost != nil { // all of them may lose their place
		s.turnedAway.WithLabelValues("handshake").Inc()
		lost.(*tls.Conn).NetConn().Close()
	}
	s.track(conn, true)
	serving.Go(func() {
		_ = conn.SetDeadline(time.Now().Add(handshakeTime)) // fails if the handshake does
		err := conn.Handshake()
		shaking.Leave(conn)
		s.track(conn, false)
		if err == nil {
			err = conn.SetDeadline(time.Time{})
		}
		if err != nil {
			s.log.Debug().Err(err).Stringer("remote", conn.RemoteAddr()).Msg("TLS handshake with the admin REST failed")
			conn.NetConn().Close()
			return
		}
		admit(conn)
	})
}

// door is an entry: an HTTP server and its places.
type door struct {
	http   *fasthttp.Server
	places *places.Set
}

// enter serves a connection, if there is a place for it.
func (s *Server) enter(d *door, conn net.Conn, serving *sync.WaitGroup) bool {
	lost, ok := d.places.Take(conn, places.Idle, time.Now())
	if !ok {
		return false
	}
	if lost != nil {
		s.turnedAway.WithLabelValues("idle").Inc()
		lost.Close()
	}
	s.track(conn, true)
	serving.Go(func() {
		defer func() { s.track(conn, false); d.places.Leave(conn) }()
		// An error here is the peer's, and every response to it was sent.
		_ = d.http.ServeConn(conn)
		conn.Close()
	})
	return true
}

// probesOnly answers the probes, one per connection, and tells other requests to retry.
func (s *Server) probesOnly(answer fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetConnectionClose()
		switch string(ctx.Path()) {
		case "/livez", "/readyz", "/healthz":
			answer(ctx)
		default:
			writeProblem(ctx, newProblem(fasthttp.StatusServiceUnavailable, CodeUnavailable,
				fmt.Sprintf("%d requests are running, the maximum: retry later", maxConnections)))
		}
	}
}

func (s *Server) newDoor(most int, handler fasthttp.RequestHandler) *door {
	d := &door{places: places.NewSet(most)}
	d.http = s.newHTTP()
	d.http.Handler = func(ctx *fasthttp.RequestCtx) {
		d.places.Set(ctx.Conn(), places.Busy, time.Now())
		handler(ctx)
		if ctx.UserValue(streaming) != nil {
			d.places.Leave(ctx.Conn())
		}
	}
	d.http.ConnState = func(conn net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateIdle { // the response was sent
			d.places.Set(conn, places.Idle, time.Now())
		}
	}
	return d
}

func (s *Server) newHTTP() *fasthttp.Server {
	return &fasthttp.Server{
		ErrorHandler: readProblem,
		// Connections are bounded in accept, where refusals are counted. fasthttp's own
		// bound counts each connection twice, and is set high enough to have no effect.
		Concurrency:        4 * maxConnections,
		ReadBufferSize:     maxHeaderBytes,
		MaxRequestBodySize: maxBodyBytes,
		// Otherwise, if a form ended before Content-Length, the rest would be read as the
		// next request.
		DisablePreParseMultipartForm: true,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 s.patience,
		IdleTimeout:                  idleTimeout,
		NoDefaultServerHeader:        true,
		// fasthttp's Date costs a goroutine for the life of the process, and it refuses one
		// set by us, so responses carry none.
		NoDefaultDate: true,
		Logger:        printer{s.log},
	}
}

// bodyBound bounds the body of a request depending on its header: only clients with
// permission for locate can make the process hold a long one.
func (s *Server) bodyBound(trusted bool) func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
	return func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		c := fasthttp.RequestConfig{MaxRequestBodySize: maxBodyBytes}
		if isLocate(h) && s.guard(h, asks, listenerOrigin(trusted)) == nil {
			c.MaxRequestBodySize = maxLocateBytes
		}
		return c
	}
}

// listenerOrigin returns the origin as far as it is known before the connection. That
// suffices, since locate requires a token over loopback too.
func listenerOrigin(trusted bool) origin {
	if trusted {
		return owner
	}
	return stranger
}

func isLocate(h *fasthttp.RequestHeader) bool {
	return h.IsPost() && string(h.RequestURI()) == locatePath
}

// unread answers requests that could not be read. Long bodies without a token are not read.
func (s *Server) unread(trusted bool) func(*fasthttp.RequestCtx, error) {
	return func(ctx *fasthttp.RequestCtx, err error) {
		if h := &ctx.Request.Header; errors.Is(err, fasthttp.ErrBodyTooLarge) && isLocate(h) {
			if p := s.guard(h, asks, listenerOrigin(trusted)); p != nil {
				writeProblem(ctx, p)
				return
			}
		}
		readProblem(ctx, err)
	}
}

// drain ends idle connections at once and waits for the busy ones.
func (s *Server) drain(serving *sync.WaitGroup) {
	// Closing the reading half makes an idle connection see end of file, while a response
	// in progress can still be written.
	s.eachConn(func(c net.Conn) {
		if secure, ok := c.(*tls.Conn); ok {
			c = secure.NetConn()
		}
		if half, ok := c.(interface{ CloseRead() error }); ok && half.CloseRead() == nil {
			return
		}
		c.Close()
	})
	done := make(chan struct{})
	go func() { serving.Wait(); s.streams.Wait(); close(done) }()
	if waited(done, drainTimeout) {
		return
	}
	s.eachConn(func(c net.Conn) { c.Close() })
	if !waited(done, closeTimeout) {
		s.log.Error().Msg("admin requests still run after their connections were closed; not waiting for them")
	}
}

func waited(done <-chan struct{}, d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-done:
		return true
	case <-limit.C:
		return false
	}
}

func (s *Server) track(c net.Conn, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.mu.conns[c] = struct{}{}
		return
	}
	delete(s.mu.conns, c)
}

func (s *Server) eachConn(do func(net.Conn)) {
	s.mu.Lock()
	conns := make([]net.Conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		do(c)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// complainer logs metrics that could not be gathered.
type complainer struct{ log zerolog.Logger }

func (c complainer) Println(v ...any) {
	c.log.Error().Msg(strings.TrimSpace(fmt.Sprintln(v...)))
}

// printer receives fasthttp's log lines.
type printer struct{ log zerolog.Logger }

func (p printer) Printf(format string, args ...any) {
	p.log.Debug().Msgf(format, args...)
}
