package parallel

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// PlanQuery asks who computes the missing segments of a prompt.
type PlanQuery struct {
	Conn     uint64 // the connection that asks; its plans end with it
	Scope    Scope
	Segments []Segment // keys are computed again; one may come once only
	Pieces   bool      // the engine that asks can go on from a first piece, and publish one
	Queued   time.Duration
	Within   time.Duration // 0 = DefaultWithin; at most MaxWithin
	Off      bool          // segments of this profile are not used: nothing is begun
}

// PlanAnswer says who does.
type PlanAnswer struct {
	Plan            uint64 // 0 = nothing was begun: all is Own
	Reason          Reason
	Expected, Alone time.Duration   // until all rows are here, and if the engine that asks computes them all
	Workers         []uint32        // of each row: 0 = the engine that asks
	Rows            []time.Duration // until each is expected here
	Own             []OwnWork       // in the order to do it
	Combine         string          // node at which the rows would be together earliest; empty = this one
}

// OwnWork is what the engine that asks computes of a row: from Begin above 0 on it goes on
// from the segment of the tokens before; an End below the row's is a first piece.
type OwnWork struct{ Row, Begin, End int }

// check verifies a query and gives its profile.
func (w *Work) check(q *PlanQuery) (*profile.Profile, error) {
	p, ok := w.cfg.Store.Profile(q.Scope.Profile)
	if !ok {
		return nil, invalid("profile %d is not registered", q.Scope.Profile)
	}
	if len(q.Segments) == 0 || len(q.Segments) > MaxRows {
		return nil, invalid("plan of %d segments, 1 to %d", len(q.Segments), MaxRows)
	}
	salt, total := w.tenants[q.Scope.Tenant].Salt, 0
	seen := make(map[profile.SegmentKey]bool, len(q.Segments))
	for i := range q.Segments {
		s := &q.Segments[i]
		k, err := key(p, salt, s.Spec, s.IDs)
		switch {
		case err != nil:
			return nil, err
		case k != s.Key:
			return nil, invalid("row %d: its tokens have key %x", i, k[:8])
		case seen[k]:
			return nil, invalid("row %d comes twice", i)
		}
		seen[k] = true
		if total += len(s.IDs); total > maxPlanTokens {
			return nil, invalid("plan of more than %d tokens", maxPlanTokens)
		}
	}
	if n := len(primersOf(q.Segments)); n > MaxPrimers {
		return nil, invalid("plan of segments after %d primers, most %d", n, MaxPrimers)
	}
	return p, nil
}

// JobsQuery asks for jobs.
type JobsQuery struct {
	Conn     uint64
	Scope    Scope
	Jobs     int                // most at once; 0 with End
	Primers  []profile.PrimerID // after which the engine is able to capture segments, at most MaxPrimers
	Pieces   bool
	Queued   time.Duration // other work that the engine does first
	Declined []uint64
	End      bool // it takes no more
	Wait     time.Duration
}

// Job is what an engine is to compute and publish. IDs are shared and must not be written.
type Job struct {
	ID uint64
	Segment
	Begin  int                // 0 = all of it
	Left   profile.SegmentKey // of the tokens before Begin
	Within time.Duration      // after that nobody waits for it
}

// Jobs waits for jobs, q.Wait at most, of no more than so many tokens together. tier.ErrBusy:
// the connection waits for jobs already, or there are too many engines.
func (w *Work) Jobs(ctx context.Context, q *JobsQuery, tokens int) (list []Job, gone []uint64, has int, err error) {
	if q.End {
		w.board.leaveAll(func(x *worker) bool { return x.conn == q.Conn && x.scope == q.Scope })
		return nil, nil, 0, nil
	}
	x, err := w.board.register(q, w.cfg.Now())
	if err != nil {
		return nil, nil, 0, err
	}
	signal(w.wake)
	defer func() { w.board.asked(x, w.cfg.Now()) }()
	timer := time.NewTimer(min(q.Wait, MaxWait))
	defer timer.Stop()
	for {
		if list, gone, has = w.board.next(x, w.cfg.Now(), tokens); len(list)+len(gone) > 0 {
			return list, gone, has, nil
		}
		select {
		case <-x.wake:
		case <-timer.C:
			return nil, nil, has, nil
		case <-ctx.Done():
			return nil, nil, has, ctx.Err()
		case <-w.ctx.Done():
			return nil, nil, has, tier.ErrUnavailable
		}
	}
}

// Watch waits for what happens to rows of a plan, wait at most; left is how many are not
// settled. tier.ErrGone: there is no such plan, or not any more; tier.ErrBusy: somebody
// waits already. end: the plan is to end now.
func (w *Work) Watch(ctx context.Context, conn, id uint64, wait time.Duration, end bool) (list []RowProgress, left int, err error) {
	w.mu.Lock()
	p := w.plans[id]
	w.mu.Unlock()
	if p == nil || p.conn != conn {
		return nil, 0, gone(id)
	}
	if end {
		p.finish()
		return nil, 0, nil
	}
	if !p.watching.CompareAndSwap(false, true) {
		return nil, 0, busy("plan %x is watched already", id)
	}
	defer p.watching.Store(false)
	timer := time.NewTimer(min(wait, MaxWait))
	defer timer.Stop()
	for {
		if list, left = p.news(); len(list) > 0 || left == 0 {
			return list, left, nil
		}
		select {
		case <-p.wake:
		case <-timer.C:
			return nil, left, nil
		case <-ctx.Done():
			return nil, left, ctx.Err()
		case <-p.ctx.Done():
			return nil, 0, gone(id)
		}
	}
}
