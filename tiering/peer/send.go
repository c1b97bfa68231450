package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// read leases the requested object and returns the requested range as a body.
func (s *Server) read(ctx *fasthttp.RequestCtx) (*body, error) {
	if !ctx.IsPost() {
		return nil, fmt.Errorf("peer: %s: %w", ctx.Method(), tier.ErrInvalid)
	}
	q, err := decodeRead(ctx.PostBody())
	if err != nil {
		return nil, err
	}
	wait, cancel := s.wait()
	defer cancel()
	list, err := s.acquire(wait, []name{q.name})
	if err != nil {
		return nil, err
	}
	b := &body{server: s, conn: ctx.Conn(), of: list[0], n: q.n}
	if err := b.open(&q, &list[0]); err != nil {
		b.done()
		return nil, err
	}
	s.counts.reads.Add(1)
	ctx.Response.Header.SetContentType("application/octet-stream")
	return b, nil
}

// body is a range that is sent directly from the arena, under a lease.
type body struct {
	server *Server
	conn   net.Conn
	leave  func()
	once   sync.Once

	of     held
	unpin  func()
	runs   [][]byte // bytes that are not sent yet
	n      int64
	sent   int64 // bytes sent, or held back by a cork
	failed bool
}

// open checks the request against the leased object, and finds the bytes of the range.
func (b *body) open(q *readRequest, h *held) error {
	switch {
	case h.later:
		return fmt.Errorf("peer: %v is on its way into memory: %w", q.Name, tier.ErrBusy)
	case h.object == nil:
		return fmt.Errorf("peer: %v: %w", q.Name, tier.ErrGone)
	case pinOf(describe(h.object)) != q.pin:
		return fmt.Errorf("peer: %v: %w", q.Name, errChanged)
	case q.rank >= len(h.object.Shares):
		return fmt.Errorf("peer: rank %d of %d: %w", q.rank, len(h.object.Shares), tier.ErrInvalid)
	}
	ref := h.object.Shares[q.rank].Ref
	if n := ref.Len(); q.off > n || q.n > n-q.off {
		return fmt.Errorf("peer: bytes [%d, +%d) of %d: %w", q.off, q.n, n, tier.ErrInvalid)
	}
	part := ref.Slice(q.off, q.n)
	var err error
	if b.runs, b.unpin, err = b.server.cfg.Device.Pin(part, false); err == nil {
		return nil
	}
	if !errors.Is(err, gpuipc.ErrUnavailable) {
		return fmt.Errorf("peer: %w: %w", tier.ErrUnavailable, err)
	}
	copied := make([]byte, q.n) // a copy of memory that the CPU cannot address; at most MaxRequests copies of maxRange bytes
	if err := b.server.cfg.Device.Load(b.server.ctx, copied, part); err != nil {
		return fmt.Errorf("peer: %w: %w", tier.ErrUnavailable, err)
	}
	b.runs = [][]byte{copied}
	return nil
}

// sendBytes is the size of one write. The peer has to accept each within StallTime.
const sendBytes = 1 << 20

// WriteTo sends the remaining bytes. It writes to the connection instead of w, which
// would copy, and replaces the server's timeout for a whole response with one for each
// write: a peer may be slow, but must not stall.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	cork := corkOf(b.conn)
	cork.Cork()
	err := b.send(w)
	if last := cork.Uncork(); err == nil {
		err = last
	}
	b.failed = err != nil
	if err == nil {
		err = b.conn.SetWriteDeadline(time.Time{})
	}
	return b.sent, err
}

func (b *body) send(w io.Writer) error {
	if f, ok := w.(interface{ Flush() error }); ok {
		if err := b.allow(); err != nil {
			return err
		}
		if err := f.Flush(); err != nil {
			return err
		}
		w = b.conn
	}
	for len(b.runs) > 0 {
		if err := b.allow(); err != nil {
			return err
		}
		piece := net.Buffers(b.cut(sendBytes))
		n, err := piece.WriteTo(w)
		b.sent += n
		b.server.counts.sent.Add(uint64(n))
		if err != nil {
			return err
		}
	}
	return b.allow() // so that the corked bytes have StallTime too
}

// allow sets the write deadline to StallTime from now.
func (b *body) allow() error {
	return b.conn.SetWriteDeadline(time.Now().Add(b.server.cfg.StallTime))
}

// cut returns the next n bytes, or all if fewer are left.
func (b *body) cut(n int) (piece [][]byte) {
	for n > 0 && len(b.runs) > 0 {
		k := min(n, len(b.runs[0]))
		piece = append(piece, b.runs[0][:k])
		if b.runs[0] = b.runs[0][k:]; len(b.runs[0]) == 0 {
			b.runs = b.runs[1:]
		}
		n -= k
	}
	return piece
}

// Read implements io.Reader, for callers that do not use WriteTo.
func (b *body) Read(p []byte) (int, error) {
	if len(b.runs) == 0 {
		return 0, io.EOF
	}
	n := 0
	for _, run := range b.cut(len(p)) {
		n += copy(p[n:], run)
	}
	b.sent += int64(n)
	return n, nil
}

// Close ends the request, after the body was sent or sending failed.
func (b *body) Close() error {
	b.once.Do(func() {
		if b.sent < b.n || b.failed {
			b.server.counts.stalled.Add(1)
		}
		b.done()
		b.leave()
	})
	return nil
}

func (b *body) done() {
	if b.unpin != nil {
		b.unpin()
	}
	b.server.letGo(&b.of)
}
