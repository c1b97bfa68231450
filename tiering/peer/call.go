package peer

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Call is a request to one member, for other packages.
type Call struct {
	Path string
	Body []byte
	// Within is the timeout until the answer begins, and again until it is complete.
	Within time.Duration
	Most   int // most bytes of the answer; a longer one is an error
}

// Call sends a request to a member and returns its answer. It occupies one connection
// meanwhile. It has no effect on the member's breaker, since a call may wait for events
// at the member. Errors wrap tier.ErrUnavailable (not a member, not to be asked now, or
// no valid answer), tier.ErrBusy, tier.ErrGone, or the context's error.
func (p *Peers) Call(ctx context.Context, node Node, q *Call) (answer []byte, err error) {
	m := p.member(node)
	if m == nil || m.silent.Load() || !m.breaker.may(p.cfg.Now()) {
		return nil, fmt.Errorf("peer: node %d is not asked: %w", node, tier.ErrUnavailable)
	}
	err = m.exchange(ctx, &request{path: q.Path, body: q.Body, time: q.Within, consume: func(ctx context.Context, l *link, n int) (err error) {
		answer, err = m.body(ctx, l, n, q.Most, q.Within)
		return err
	}})
	return answer, err
}

// body reads an answer of n bytes, at most most, within a time.
func (m *member) body(ctx context.Context, l *link, n, most int, within time.Duration) ([]byte, error) {
	if n > most {
		return nil, fmt.Errorf("%w: node %d answers with %d bytes, at most %d", errFailed, m.Node, n, most)
	}
	if err := l.expect(ctx, within); err != nil {
		return nil, m.failure(ctx, err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(l.br, b); err != nil {
		return nil, m.failure(ctx, err)
	}
	return b, nil
}

// Reach returns the measured round trip to a member and its rate in bytes per second. 0 =
// not measured, or no such member.
func (p *Peers) Reach(node Node) (rtt time.Duration, bytesPerSecond float64) {
	if m := p.member(node); m != nil {
		return m.speed.get()
	}
	return 0, 0
}
