package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
)

// Run accepts on all listeners until ctx ends or one of them fails, then lets
// answers in progress finish (at most drainTimeout) and closes everything,
// listeners too. It returns the failure, nil after ctx. Call it once.
//
// We accept ourselves and hand connections to fasthttp one by one: its own pool
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
	server := s.newHTTP(ln.Trusted)
	free := make(chan struct{}, maxConnections)
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
			s.log.Warn().Err(err).Msg("admin listener cannot accept for now")
			pause(ctx, 100*time.Millisecond)
			continue
		}
		select {
		case free <- struct{}{}:
		default:
			s.refused.Add(1)
			conn.Close()
			continue
		}
		s.track(conn, true)
		serving.Go(func() {
			defer func() { s.track(conn, false); <-free }()
			// What ends a connection is the peer's doing, and every answer to it was sent.
			_ = server.ServeConn(conn)
			conn.Close()
		})
	}
}

func (s *Server) newHTTP(trusted bool) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:      s.handler(trusted),
		ErrorHandler: readProblem,
		// Connections are bounded in accept, where the bound is counted.
		// fasthttp's own bound counts each of ours twice and stays out of it.
		Concurrency:           4 * maxConnections,
		ReadBufferSize:        maxHeaderBytes,
		MaxRequestBodySize:    maxBodyBytes,
		ReadTimeout:           readTimeout,
		WriteTimeout:          writeTimeout,
		IdleTimeout:           idleTimeout,
		NoDefaultServerHeader: true,
		// fasthttp's Date costs a goroutine for the life of the process and it
		// refuses one of ours, so answers carry none.
		NoDefaultDate: true,
		Logger:        printer{s.log},
	}
}

// drain ends idle connections at once and waits for the busy ones.
func (s *Server) drain(serving *sync.WaitGroup) {
	// Closing the reading half makes an idle connection see its end, while an
	// answer in progress can still be written.
	s.eachConn(func(c net.Conn) {
		if half, ok := c.(interface{ CloseRead() error }); ok && half.CloseRead() == nil {
			return
		}
		c.Close()
	})
	done := make(chan struct{})
	go func() { serving.Wait(); close(done) }()
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

// complainer logs what of the metrics could not be gathered.
type complainer struct{ log zerolog.Logger }

func (c complainer) Println(v ...any) {
	c.log.Error().Msg(strings.TrimSpace(fmt.Sprintln(v...)))
}

// printer gives fasthttp's log lines a place.
type printer struct{ log zerolog.Logger }

func (p printer) Printf(format string, args ...any) {
	p.log.Debug().Msgf(format, args...)
}
