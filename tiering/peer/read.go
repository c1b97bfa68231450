package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// copyOf is a tier.Copy: an object as one member describes it. It does not change.
type copyOf struct {
	peers   *Peers
	want    tier.Want
	name    name
	profile *profile.Profile
	tag     uint64
	layout  profile.Layout
	from    *member
	pin     pin
	content tier.Content
	entry   tier.Entry
}

// Entry implements tier.Copy, like Close and Read.
func (c *copyOf) Entry() *tier.Entry { return &c.entry }

// Close does nothing: members keep no state between requests.
func (c *copyOf) Close() {}

// Read requests ranges on several connections at once. If a member fails, another one
// continues with the ranges that have not arrived.
func (c *copyOf) Read(ctx context.Context, dst []gpuipc.Ref) (*tier.Content, error) {
	if len(dst) != len(c.content.Digests) {
		return nil, fmt.Errorf("peer: read %v of %d ranks to %d: %w", c.want.Name, len(c.content.Digests), len(dst), tier.ErrInvalid)
	}
	for i := range dst {
		if n := dst[i].Len(); n != c.layout.Bytes {
			return nil, fmt.Errorf("peer: read %v of %d bytes a rank to %d: %w", c.want.Name, c.layout.Bytes, n, tier.ErrInvalid)
		}
	}
	to, err := openTarget(c.peers.cfg.Device, dst)
	if err != nil {
		return nil, err
	}
	defer to.close()
	to.order = c.peers.begun.Add(1)
	began := time.Now()
	if err := c.readAll(ctx, to); err != nil {
		return nil, fmt.Errorf("peer: read %v: %w", c.want.Name, err)
	}
	counts := &c.peers.counts
	counts.read.Add(1)
	counts.readBytes.Add(uint64(c.entry.Bytes))
	took := time.Since(began)
	counts.readNanos.Add(uint64(took))
	counts.duration.Observe(took.Seconds())
	return &c.content, nil
}

// readAll asks one member after another until everything has arrived.
func (c *copyOf) readAll(ctx context.Context, to *target) error {
	left := spansOf(&c.layout, c.content.Digests, c.rangeBytes())
	asked, gone := []Node{c.from.Node}, true
	for m := c.from; ; {
		err := c.readFrom(ctx, m, &left, to)
		if err == nil {
			return nil
		}
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		switch {
		case errors.Is(err, tier.ErrCorrupt):
			c.peers.suspect(m, c.tag, err)
			return err
		case errors.Is(err, errTarget):
			return err
		}
		gone = gone && errors.Is(err, tier.ErrGone)
		c.peers.avoid(m, c.tag)
		if m = c.another(ctx, &asked); m == nil {
			return c.final(ctx, gone, err)
		}
		c.peers.counts.failovers.Add(1)
	}
}

// minRange is the smallest range that is worth a request, in bytes (a guess: it takes
// about 0.1 ms at 25 Gbit/s).
const minRange = 256 << 10

// rangeBytes returns the length of ranges. It is short enough that the ranges of an
// object occupy all streams, so that the oldest copy can use the whole link.
func (c *copyOf) rangeBytes() int64 {
	cfg := &c.peers.cfg
	each := (c.entry.Bytes + int64(cfg.Streams) - 1) / int64(cfg.Streams)
	return min(max(each, minRange), cfg.RangeBytes)
}

// The method final returns the error of readAll when no member is left to ask.
func (c *copyOf) final(ctx context.Context, gone bool, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case gone, errors.Is(err, tier.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
}

// The method another asks further members until one has the object with the same digests,
// and returns that member. nil means that there is none.
func (c *copyOf) another(ctx context.Context, asked *[]Node) *member {
	for _, m := range c.peers.candidates(c.tag, c.peers.cfg.Now()) {
		if slices.Contains(*asked, m.Node) || len(*asked) >= c.peers.cfg.Candidates {
			continue
		}
		*asked = append(*asked, m.Node)
		s := search{want: &c.want, name: c.name, profile: c.profile, tag: c.tag}
		c.peers.ask(ctx, m, []*search{&s})
		if s.found != nil && s.found.pin == c.pin {
			return m
		}
	}
	return nil
}

// readFrom reads the spans in *left from one member, and removes those that have arrived
// from *left.
func (c *copyOf) readFrom(ctx context.Context, m *member, left *[]span, to *target) error {
	bytes := int64(0)
	for i := range *left {
		bytes += (*left)[i].n
	}
	if err := m.enterRead(bytes); err != nil {
		return err
	}
	if !m.breaker.begin(c.peers.cfg.Now()) {
		m.leaveRead(bytes)
		return fmt.Errorf("%w: node %d is left alone", errFailed, m.Node)
	}
	round, stop := context.WithCancel(ctx)
	defer stop()
	r := reading{copyOf: c, member: m, to: to, order: to.order, spans: *left, came: make([]bool, len(*left))}
	var workers sync.WaitGroup
	for range min(len(r.spans), c.peers.cfg.Streams) {
		workers.Go(func() { r.work(round, stop) })
	}
	workers.Wait()
	rest, still := (*left)[:0:0], int64(0)
	for i := range r.spans {
		if !r.came[i] {
			rest, still = append(rest, r.spans[i]), still+r.spans[i].n
		}
	}
	if *left = rest; len(rest) > 0 && r.err == nil {
		r.err = ctx.Err() // the context ended before any request
	}
	m.leaveRead(still)
	c.peers.settle(ctx, m, reads, r.err)
	return r.err
}

// reading is a read from one member by several workers.
type reading struct {
	*copyOf
	member *member
	to     *target
	order  uint64 // start order of the copy among all copies
	spans  []span
	came   []bool // whether each span has arrived; one worker writes each element
	next   atomic.Int64
	once   sync.Once
	err    error // the first error; valid after all workers have ended
}

func (r *reading) work(ctx context.Context, stop func()) {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.spans) || ctx.Err() != nil {
			return
		}
		if err := r.span(ctx, &r.spans[i]); err != nil {
			r.once.Do(func() { r.err = err })
			stop()
			return
		}
		r.came[i] = true
		r.member.queued.Add(-r.spans[i].n)
	}
}

// maxBusy is the most requests for a range to a member that is busy.
const maxBusy = 8

// span reads one range, and retries later if the member is busy.
func (r *reading) span(ctx context.Context, s *span) error {
	for try := 1; ; try++ {
		err := r.try(ctx, s)
		var busy *busyError
		if !errors.As(err, &busy) || try == maxBusy {
			return err
		}
		pause := time.NewTimer(busy.after * time.Duration(try))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

func (r *reading) try(ctx context.Context, s *span) error {
	m, cfg := r.member, &r.peers.cfg
	if err := m.slots.take(ctx, r.order); err != nil {
		return err
	}
	defer m.slots.give()
	q := readRequest{name: r.name, pin: r.pin, rank: s.rank, off: s.off, n: s.n}
	most := cfg.StallTime + time.Duration(float64(s.n)/float64(cfg.MinBytesPerSecond)*float64(time.Second))
	return m.exchange(ctx, &request{
		path: ReadPath, body: q.append(make([]byte, 0, readBytes)), time: cfg.StallTime,
		consume: func(ctx context.Context, l *link, n int) error {
			if int64(n) != s.n {
				return fmt.Errorf("%w: node %d sends %d bytes of %d", errFailed, m.Node, n, s.n)
			}
			m.speed.begin(time.Now())
			end := time.Now().Add(most)
			err := r.to.fill(ctx, s, func(runs [][]byte) error { return m.fill(ctx, l, runs, end) })
			if err != nil {
				n = 0
			}
			m.speed.end(time.Now(), int64(n))
			return err
		},
	})
}
