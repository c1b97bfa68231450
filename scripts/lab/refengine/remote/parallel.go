package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// watchWait bounds one WatchPlan or WatchJobs call. pieceWait bounds the wait for the first
// piece of a segment after the daemon has reported this piece as present.
const (
	watchWait = 2 * time.Second
	pieceWait = 2 * time.Second
)

// Parallel is a Store whose missing segments may also be computed by other engines, on other
// nodes or on this node.
type Parallel struct {
	*Store
	// Pieces allows cutting a segment into two pieces. The result then differs by the rounding
	// of the first piece in storage.
	Pieces bool
	// Last describes the last Compute.
	Last Shared
}

// Shared is the outcome of a plan.
type Shared struct {
	Plan connector.Parallel
	Rows []uint8 // wire.Progress… of each row; 0 = computed by this engine
}

var _ refengine.Helped = (*Parallel)(nil)

// Compute implements refengine.Helped. It requests a plan, computes this engine's share, and
// then computes the rows that other engines do not deliver. Without a plan this engine computes
// everything.
func (p *Parallel) Compute(m *refengine.Model[float32], missing []refengine.Missing) (captured int, err error) {
	c := computing{p: p, m: m, missing: missing, here: map[int]bool{}}
	q := connector.ParallelQuery{Pieces: p.Pieces}
	for _, s := range missing {
		q.Segments = append(q.Segments, connector.SegmentIDs{Spec: s.Spec, Tokens: s.Tokens})
	}
	c.plan, err = p.model.PlanSegments(p.ctx, &q)
	if err != nil {
		c.plan = connector.Parallel{}
		for i, s := range missing {
			c.plan.Own = append(c.plan.Own, connector.OwnSegment{Row: i, End: len(s.Tokens)})
		}
	}
	p.Last = Shared{c.plan, make([]uint8, len(missing))}
	err = c.run()
	return c.captured, err
}

// computing is one plan while its engine works on it.
type computing struct {
	p        *Parallel
	m        *refengine.Model[float32]
	missing  []refengine.Missing
	plan     connector.Parallel
	here     map[int]bool // rows whose first piece has arrived
	todo     []int        // rows that others have not delivered
	open     int          // rows that others are still computing
	captured int
}

func (c *computing) run() error {
	c.open = 1 // assumed until WatchPlan reports the number
	if c.plan.ID == 0 {
		c.open = 0
	}
	for _, own := range c.plan.Own {
		if err := c.own(own); err != nil {
			return err
		}
		if err := c.watch(0); err != nil {
			return err
		}
	}
	for c.open > 0 {
		if err := c.watch(watchWait); err != nil {
			return err
		}
		for len(c.todo) > 0 {
			row := c.todo[0]
			c.todo = c.todo[1:]
			if err := c.whole(row, len(c.missing[row].Tokens)); err != nil {
				return err
			}
		}
	}
	return nil
}

// own computes this engine's share of the plan.
func (c *computing) own(o connector.OwnSegment) error {
	if o.Begin == 0 {
		return c.whole(o.Row, o.End)
	}
	for !c.here[o.Row] && c.p.Last.Rows[o.Row] == 0 && c.open > 0 {
		if err := c.watch(watchWait); err != nil {
			return err
		}
	}
	if !c.here[o.Row] {
		return nil // watch or the end of the plan has put the row in todo
	}
	s := c.missing[o.Row]
	spec := s.Spec.Left(o.Begin)
	left, err := c.p.piece(c.p.Key(spec, s.Tokens[:o.Begin]), spec, pieceWait)
	if err != nil {
		return c.whole(o.Row, len(s.Tokens))
	}
	captured, err := c.m.CaptureFrom(s.Tokens, s.Spec, left)
	if err != nil {
		return err
	}
	c.captured += len(s.Tokens) - o.Begin
	return c.p.Publish(s.Key, s.Tokens, captured)
}

// whole computes the first tokens of a row, or all of it.
func (c *computing) whole(row, end int) error {
	s := c.missing[row]
	if end < len(s.Tokens) {
		s.Spec, s.Tokens = s.Spec.Left(end), s.Tokens[:end]
		s.Key = c.p.Key(s.Spec, s.Tokens)
	}
	captured, err := c.m.Capture(s.Tokens, s.Spec)
	if err != nil {
		return err
	}
	c.captured += len(s.Tokens)
	return c.p.Publish(s.Key, s.Tokens, captured)
}

// watch receives the progress of rows. Once no more progress is expected, watch computes the
// rows that were not delivered. If the daemon does not answer or no longer knows the plan, no
// more progress is expected, and watch computes all rows that are still missing.
func (c *computing) watch(wait time.Duration) error {
	if c.open == 0 {
		return nil
	}
	list, open, err := c.p.model.WatchPlan(c.p.ctx, c.plan.ID, wait)
	if ended := c.p.ctx.Err(); ended != nil {
		return ended
	}
	if err != nil {
		open = 0
		for i, r := range c.plan.Rows {
			if r.Worker != 0 && c.p.Last.Rows[i] == 0 {
				list = append(list, connector.Progress{Row: i, What: wire.ProgressAborted})
			}
		}
	}
	c.open = open
	for _, x := range list {
		if x.Row >= len(c.missing) {
			return fmt.Errorf("row %d of %d: %w", x.Row, len(c.missing), connector.ErrUnavailable)
		}
		c.p.Last.Rows[x.Row] = x.What
		switch x.What {
		case wire.ProgressPiece:
			c.here[x.Row] = true
		case wire.ProgressAborted, wire.ProgressLate:
			c.todo = append(c.todo, x.Row)
		}
	}
	if c.open == 0 && len(c.todo) > 0 {
		return c.rest()
	}
	return nil
}

// rest computes the rows that others did not deliver, once no more progress is expected.
func (c *computing) rest() error {
	for len(c.todo) > 0 {
		row := c.todo[0]
		c.todo = c.todo[1:]
		if err := c.whole(row, len(c.missing[row].Tokens)); err != nil {
			return err
		}
	}
	return nil
}

// errRounded means that a piece was packed with errors. A segment that continues from it would
// have these errors in addition to the errors that are reported for the whole segment.
var errRounded = errors.New("remote: a piece is not as it was computed")

// piece returns the values of a cached segment, or errRounded if they differ from the
// computed ones.
func (s *Store) piece(key profile.SegmentKey, spec profile.SegmentSpec, wait time.Duration) (*refengine.Segment[float32], error) {
	rows, err := s.model.Acquire(s.ctx, []profile.SegmentKey{key}, connector.AcquireOptions{Wait: wait})
	if err != nil {
		return nil, err
	}
	if rows[0].Err != nil {
		return nil, rows[0].Err
	}
	lease := rows[0].Lease
	defer lease.Release()
	if transition, rest := lease.Errors(); max(transition, rest) > 0 {
		return nil, fmt.Errorf("segment %x: %w", key[:8], errRounded)
	}
	if begin, n := spec.Interior(); lease.Begin != begin || lease.Tokens != n {
		return nil, fmt.Errorf("segment %x covers other tokens: %w", key[:8], connector.ErrCorrupt)
	}
	out := &refengine.Segment[float32]{Spec: spec, Layers: make([]refengine.SegmentLayer[float32], len(s.prof.Identity().Layers))}
	layout := lease.Layout()
	for i := range out.Layers {
		l := &out.Layers[i]
		for _, at := range []struct {
			kind profile.PartKind
			to   *[]float32
		}{{profile.PartT, &l.T}, {profile.PartS, &l.S}, {profile.PartConv, &l.Conv}, {profile.PartK, &l.K}, {profile.PartV, &l.V}} {
			if *at.to, err = elements(layout, i, at.kind, lease.Read); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Work computes segments for other engines until the store's context ends. It computes a whole
// segment in isolation, or continues from the first piece of the segment, which another engine
// has published. It publishes the result like any segment. It declines jobs that it cannot do.
// An error that it returns comes from the daemon, which may be temporarily absent.
func (s *Store) Work(m *refengine.Model[float32]) error {
	q := connector.WorkerQuery{Jobs: 2, Pieces: true, Wait: watchWait}
	for {
		jobs, err := s.model.WatchJobs(s.ctx, &q)
		if s.ctx.Err() != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Second)
			defer cancel()
			_ = s.model.EndWork(ctx) // without it, the role as a worker ends after some seconds
			return nil
		}
		if err != nil {
			return err
		}
		q.Declined = nil
		for i := range jobs.New {
			j := &jobs.New[i]
			if err := s.do(m, j); errors.Is(err, connector.ErrUnavailable) {
				return err
			} else if err != nil {
				q.Declined = append(q.Declined, j.ID)
			}
		}
	}
}

// do computes one job.
func (s *Store) do(m *refengine.Model[float32], j *connector.Job) error {
	if s.Key(j.Spec, j.Tokens) != j.Key {
		return fmt.Errorf("job %d: its tokens have another key: %w", j.ID, connector.ErrCorrupt)
	}
	var captured *refengine.Segment[float32]
	var err error
	if j.Begin == 0 {
		captured, err = m.Capture(j.Tokens, j.Spec)
	} else {
		left, failed := s.piece(j.Left, j.Spec.Left(j.Begin), pieceWait)
		switch {
		case failed == nil:
			captured, err = m.CaptureFrom(j.Tokens, j.Spec, left)
		case errors.Is(failed, errRounded):
			captured, err = m.Capture(j.Tokens, j.Spec)
		default:
			return failed
		}
	}
	if err != nil {
		return err
	}
	return s.Publish(j.Key, j.Tokens, captured)
}
