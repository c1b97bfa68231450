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

// Run accepts connections on all listeners until ctx ends or a listener fails. It then waits at
// most drainTimeout for responses in progress, and closes all connections and listeners. It
// returns the failure, or nil if ctx ended. It may be called once.
//
// Run accepts connections itself and passes them to fasthttp one by one. fasthttp's own accept
// loop uses a pool of workers with a polling goroutine, whose end cannot be waited for.
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
	// Probes have separate places, so that clients that occupy all other places cannot make a
	// node look dead.
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

// shake performs the TLS handshake of a connection and then calls admit. Handshakes have a
// separate set of places, so that a peer that does not finish one takes no place from requests.
func (s *Server) shake(shaking *places.Set, conn *tls.Conn, serving *sync.WaitGroup, admit func(net.Conn)) {
	if lost, _ := shaking.Take(conn, places.Pending, time.Now()); lost != nil { // all of them may lose their place
		s.turnedAway.WithLabelValues("handshake").Inc()
		lost.(*tls.Conn).NetConn().Close()
	}
	s.track(conn, true)
	serving.Go(func() {
		_ = conn.SetDeadline(time.Now().Add(handshakeTime)) // after an error the handshake fails, too
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

// door is an HTTP server with the places of its connections.
type door struct {
	http   *fasthttp.Server
	places *places.Set
}

// enter starts serving a connection. It returns false if there is no place for it.
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
		// An error here is caused by the peer, and the response to it was already sent.
		_ = d.http.ServeConn(conn)
		conn.Close()
	})
	return true
}

// probesOnly answers probes, one per connection. It answers other requests 503 with a time
// after which to retry.
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
		ErrorHandler: func(ctx *fasthttp.RequestCtx, err error) { writeProblem(ctx, readProblem(err)) },
		// accept bounds the connections and counts refusals. fasthttp's own bound counts each
		// connection twice; this value is high enough to have no effect.
		Concurrency:        4 * maxConnections,
		ReadBufferSize:     maxHeaderBytes,
		MaxRequestBodySize: maxBodyBytes,
		// Without this setting, fasthttp would read the bytes between the end of a form and
		// Content-Length as the next request.
		DisablePreParseMultipartForm: true,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 s.patience,
		IdleTimeout:                  s.idle,
		NoDefaultServerHeader:        true,
		// fasthttp needs a goroutine for the life of the process to write Date, and does not
		// let a handler set it, so responses have no Date.
		NoDefaultDate: true,
		Logger:        printer{s.log},
	}
}

// bodyBound bounds the body of a request by its header: maxLocateBytes for a permitted locate
// query, maxBodyBytes for every other request.
func (s *Server) bodyBound(trusted bool) func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
	return func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		c := fasthttp.RequestConfig{MaxRequestBodySize: maxBodyBytes}
		if isLocate(h) && s.guard(h, asks, listenerOrigin(trusted)) == nil {
			c.MaxRequestBodySize = maxLocateBytes
		}
		return c
	}
}

// listenerOrigin returns the origin of requests as far as it is known from the listener alone.
// It does not detect loopback, which makes no difference for locate.
func listenerOrigin(trusted bool) origin {
	if trusted {
		return owner
	}
	return stranger
}

func isLocate(h *fasthttp.RequestHeader) bool {
	return h.IsPost() && string(h.RequestURI()) == locatePath
}

// unread answers requests that could not be read. A locate query without a token, whose body
// exceeds maxBodyBytes, gets the problem of the missing token.
func (s *Server) unread(trusted bool) func(*fasthttp.RequestCtx, error) {
	return func(ctx *fasthttp.RequestCtx, err error) {
		p := readProblem(err)
		if h := &ctx.Request.Header; errors.Is(err, fasthttp.ErrBodyTooLarge) && isLocate(h) {
			if missing := s.guard(h, asks, listenerOrigin(trusted)); missing != nil {
				p = missing
			}
		}
		s.refuse(ctx, p)
	}
}

// drain closes idle connections at once. It waits up to drainTimeout for the busy ones and then
// closes them, too.
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
