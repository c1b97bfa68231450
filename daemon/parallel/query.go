package parallel

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// PlanQuery asks which engines compute the missing segments of a prompt.
type PlanQuery struct {
	Conn     uint64 // requesting connection; its plans end with it
	Scope    Scope
	Segments []Segment // without duplicates; the keys are computed again from IDs
	Pieces   bool      // the requesting engine can continue from a first piece, and can publish one
	Queued   time.Duration
	Within   time.Duration // 0 = DefaultWithin; at most MaxWithin
	Off      bool          // splicing is switched off for the profile, so that nothing is started
}

// PlanAnswer says which engine computes which row.
type PlanAnswer struct {
	Plan            uint64 // id of the plan; 0 = there is no plan, and all rows are in Own
	Reason          Reason
	Expected, Alone time.Duration   // time until all rows are here: by this plan, and without other engines
	Workers         []uint32        // for each row: number of the engine; 0 = the requesting engine
	Rows            []time.Duration // for each row: time until it is expected here
	Own             []OwnWork       // what the requesting engine computes, in this order
	Combine         string          // name of the node that would have all rows first; "" = this node
}

// OwnWork is the range of a row's tokens that the requesting engine computes. If Begin is above 0,
// the range is the right piece of the row, and the engine continues from the segment of the tokens
// before Begin. If End is below the row's length, the range is the left piece, and another engine
// computes the right piece.
type OwnWork struct{ Row, Begin, End int }

// check validates a query, including its keys, and returns its profile.
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
		return nil, invalid("plan of segments after %d primers, at most %d", n, MaxPrimers)
	}
	return p, nil
}

// JobsQuery asks for jobs on behalf of an engine.
type JobsQuery struct {
	Conn     uint64
	Scope    Scope
	Jobs     int                // most jobs that the engine has at once; 0 with End
	Primers  []profile.PrimerID // primers after which the engine can capture segments, at most MaxPrimers
	Pieces   bool
	Queued   time.Duration // time of the other work that the engine does first
	Declined []uint64
	End      bool // the engine takes no more jobs
	Wait     time.Duration
}

// Job is a segment that an engine is asked to compute and publish. IDs is shared and must not be
// modified.
type Job struct {
	ID uint64
	Segment
	Begin  int                // first token to compute; 0 = the whole segment
	Left   profile.SegmentKey // key of the segment of the tokens before Begin
	Within time.Duration      // time after which the result is no longer wanted
}

// Jobs waits, for at most q.Wait, for jobs with at most the given number of tokens in total. The
// result gone lists jobs that the engine should stop, and the result has is the number of jobs that
// the engine has now. The error wraps tier.ErrBusy if the connection waits for jobs already, or if
// there are too many engines.
func (w *Work) Jobs(ctx context.Context, q *JobsQuery, tokens int) (list []Job, gone []uint64, has int, err error) {
	if q.End {
		w.board.leave(func(x *worker) bool { return x.conn == q.Conn && x.scope == q.Scope })
		return nil, nil, 0, nil
	}
	x, err := w.board.register(q, w.cfg.Now())
	if err != nil {
		return nil, nil, 0, err
	}
	signal(w.wake)
	defer func() { w.board.asked(x, w.cfg.Now()) }()
	err = await(ctx, min(q.Wait, MaxWait), x.wake, w.ctx, errClosing, func() bool {
		list, gone, has = w.board.next(x, w.cfg.Now(), tokens)
		return len(list)+len(gone) > 0
	})
	return list, gone, has, err
}

// await calls the function ready, again after each signal of wake, until it returns true or the duration wait is
// over. It returns the context's error if that ends earlier, and errEnded if the context of its subject ends.
func await(ctx context.Context, wait time.Duration, wake <-chan struct{}, of context.Context, errEnded error, ready func() bool) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for !ready() {
		select {
		case <-wake:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-of.Done():
			return errEnded
		}
	}
	return nil
}

// Watch waits for progress of a plan's rows, at most for the duration wait. The result left is the
// number of rows that are not settled. If the parameter end is true, Watch ends the plan and does
// not wait. The error wraps tier.ErrGone if there is no such plan (any more), and tier.ErrBusy if
// another call waits already.
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
	err = await(ctx, min(wait, MaxWait), p.wake, p.ctx, gone(id), func() bool {
		list, left = p.news()
		return len(list) > 0 || left == 0
	})
	return list, left, err
}
