package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// link is a connection to a member.
type link struct {
	net.Conn
	br    *bufio.Reader // small buffer; bodies are read directly into their destination
	since time.Time     // time of its last use
	used  bool          // its first request was answered
}

const (
	headerBytes = 4 << 10
	// idleTime is the time that an unused connection is kept; servers close theirs later (guess).
	idleTime = 30 * time.Second
)

// pool keeps idle connections. The one used last is reused first.
type pool struct {
	poolMu sync.Mutex
	idle   []*link // at most MaxIdle
	closed bool
}

func (p *pool) take(now time.Time) *link {
	p.poolMu.Lock()
	defer p.poolMu.Unlock()
	for len(p.idle) > 0 {
		l := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if now.Sub(l.since) < idleTime {
			return l
		}
		_ = l.Close()
	}
	return nil
}

func (p *pool) give(l *link, now time.Time, most int) {
	l.since, l.used = now, true
	p.poolMu.Lock()
	defer p.poolMu.Unlock()
	if p.closed || len(p.idle) >= most {
		_ = l.Close()
		return
	}
	p.idle = append(p.idle, l)
}

func (p *pool) close() {
	p.poolMu.Lock()
	p.closed = true
	p.poolMu.Unlock()
	p.drain()
}

func (p *pool) drain() {
	p.poolMu.Lock()
	defer p.poolMu.Unlock()
	for _, l := range p.idle {
		_ = l.Close()
	}
	p.idle = nil
}

// dial opens a connection. The dialer gets the caller's cancellation, but not its
// deadline: otherwise it would time out a moment before the context ends, which would
// look like a failure of the member.
func (m *member) dial(caller context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), m.cfg.DialTime)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	if err := caller.Err(); err != nil { // AfterFunc runs too late if the context has already ended
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", m.Addr)
	if err != nil {
		return nil, err
	}
	if m.TLS != nil {
		secure := tls.Client(&gathering{Conn: conn}, m.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		m.heard.Add(1)
		conn = secure
	}
	return &link{Conn: conn, br: bufio.NewReaderSize(conn, headerBytes)}, nil
}

// The method expect sets the connection's deadline for the next step to d from now. If the
// context has ended, it returns the context's error, because it may have overwritten the
// deadline that onLink sets at the end of the context.
func (l *link) expect(ctx context.Context, d time.Duration) error {
	if err := l.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	return ctx.Err()
}

// errFailed reports that a member gave no valid answer. It wraps tier.ErrUnavailable.
var errFailed = fmt.Errorf("peer: no answer: %w", tier.ErrUnavailable)

// busyError reports that a member is busy and wants to be asked again later.
type busyError struct{ after time.Duration }

func (e *busyError) Error() string { return fmt.Sprintf("peer: busy, again in %v", e.after) }
func (e *busyError) Unwrap() error { return tier.ErrBusy }

// maxRetryAfter is the longest delay that a member can ask for.
const maxRetryAfter = time.Second

// request is a request to a member, with the consumer of the answer's body.
type request struct {
	path string
	body []byte
	time time.Duration // timeout until the answer begins
	// consume reads exactly n bytes of the answer from l.br.
	consume func(ctx context.Context, l *link, n int) error
}

// exchange sends a request and reads the answer. Its error is one that the member reports
// (busyError, tier.ErrGone, errChanged), errFailed, consume's error, or the context's.
func (m *member) exchange(ctx context.Context, q *request) error {
	if l := m.take(time.Now()); l != nil {
		stale, err := m.onLink(ctx, l, q)
		if !stale {
			return err
		}
		m.drain() // the member has closed the idle connection, and may have closed the others too
	}
	l, err := m.dial(ctx)
	if err != nil {
		return m.failure(ctx, err)
	}
	_, err = m.onLink(ctx, l, q)
	return err
}

func (m *member) onLink(ctx context.Context, l *link, q *request) (stale bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	keep, stale, err := m.talk(ctx, l, q)
	if !stop() {
		keep = false // AfterFunc may still set its deadline
	}
	if keep {
		m.give(l, time.Now(), m.cfg.MaxIdle)
	} else {
		_ = l.Close()
	}
	return stale, err
}

// talk does an exchange on one connection. The result keep is true if the connection can be
// reused. The result stale is true if the member had closed the connection while it was
// idle.
func (m *member) talk(ctx context.Context, l *link, q *request) (keep, stale bool, err error) {
	if err := l.expect(ctx, q.time); err != nil {
		return false, false, m.failure(ctx, err)
	}
	head := "POST " + q.path + " HTTP/1.1\r\nHost: " + m.Addr + "\r\nContent-Length: " + strconv.Itoa(len(q.body)) + "\r\n\r\n"
	_, err = l.Write(append([]byte(head), q.body...))
	if err == nil {
		_, err = l.br.Peek(1)
	}
	if err != nil {
		return false, l.used && !timedOut(err) && ctx.Err() == nil, m.failure(ctx, err)
	}
	m.heard.Add(1)
	var h fasthttp.ResponseHeader
	h.SetNoDefaultContentType(true)
	if err := h.Read(l.br); err != nil {
		return false, false, m.failure(ctx, err)
	}
	n := h.ContentLength()
	if status := h.StatusCode(); status != fasthttp.StatusOK {
		keep := false
		if n >= 0 && n <= headerBytes {
			_, err := l.br.Discard(n)
			keep = err == nil && !h.ConnectionClose()
		}
		return keep, false, m.refused(status, h.Peek(retryHeader))
	}
	if n < 0 {
		return false, false, fmt.Errorf("%w: an answer without a length from node %d", errFailed, m.Node)
	}
	if err := q.consume(ctx, l, n); err != nil {
		return false, false, err
	}
	return !h.ConnectionClose(), false, nil
}

func timedOut(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// failure returns the context's error if it has ended, and otherwise errFailed with err.
func (m *member) failure(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("peer: node %d at %s: %w", m.Node, m.Addr, ended)
	}
	return fmt.Errorf("%w: node %d at %s: %w", errFailed, m.Node, m.Addr, err)
}

// refused returns the error for an HTTP status and the member's retryHeader.
func (m *member) refused(status int, after []byte) error {
	switch status {
	case fasthttp.StatusNotFound:
		return fmt.Errorf("peer: node %d: %w", m.Node, tier.ErrGone)
	case fasthttp.StatusPreconditionFailed:
		return fmt.Errorf("peer: node %d: %w: %w", m.Node, errChanged, tier.ErrGone)
	case fasthttp.StatusTooManyRequests:
		ms, err := strconv.ParseUint(string(after), 10, 31)
		if err != nil || ms == 0 {
			ms = uint64(retryAfter.Milliseconds())
		}
		return &busyError{min(time.Duration(ms)*time.Millisecond, maxRetryAfter)}
	}
	return fmt.Errorf("%w: node %d says %d", errFailed, m.Node, status)
}

// pieceBytes is the size of one read of a body. Each piece has to arrive within StallTime.
// It is larger than the buffers on the way, so a full piece shows progress of the sender.
const pieceBytes = 256 << 10

// fill reads bytes of a body into runs of memory. It fails when a piece takes longer than
// StallTime, or when the time end is reached.
func (m *member) fill(ctx context.Context, l *link, runs [][]byte, end time.Time) error {
	for _, run := range runs {
		for len(run) > 0 {
			piece := run[:min(len(run), pieceBytes)]
			if err := l.expect(ctx, min(m.cfg.StallTime, time.Until(end))); err != nil {
				return m.failure(ctx, err)
			}
			if _, err := io.ReadFull(l.br, piece); err != nil {
				return m.failure(ctx, err)
			}
			m.heard.Add(1)
			run = run[len(piece):]
		}
	}
	return nil
}
