package connector

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// SegmentIDs is a segment given by its geometry and token ids.
type SegmentIDs struct {
	Spec   profile.SegmentSpec
	Tokens []uint32 // the Spec.Tokens token ids
}

// ParallelQuery asks which engines compute the missing segments of a prompt.
type ParallelQuery struct {
	Segments []SegmentIDs // 1 to wire.MaxPlanRows, each once, at most wire.MaxPrompt tokens in total
	Pieces   bool         // segments may be cut into two pieces, and this engine can compute either piece
	Queued   time.Duration
	Within   time.Duration // rows not present by then are late; 0 = the daemon's default
}

// Parallel is a plan of which engine computes which segments. With ID 0 no plan was started, and
// the engine computes all missing segments.
type Parallel struct {
	ID       uint64
	Alone    uint8         // wire.Alone…: why no plan was started
	Expected time.Duration // until all rows are present
	Serial   time.Duration // time until all rows are present if this engine computes them all
	Rows     []ParallelRow // one for each segment
	Own      []OwnSegment  // what this engine computes and publishes, in this order
	Combine  string        // node at which all rows would be present earliest; empty = this one
}

// ParallelRow is one segment of a plan.
type ParallelRow struct {
	// Worker is the number of the engine, within this plan, that computes the row. 0 = the
	// asking engine; the row is then in Own, unless it is already present.
	Worker   uint32
	Expected time.Duration // until the row is present
}

// OwnSegment is the asking engine's share of a row: tokens [Begin, End) of the segment. If Begin
// is above 0, another engine computes the tokens before Begin and publishes them as a segment
// (see profile.SegmentSpec.Left); this engine acquires that segment and continues from it. If End is less than
// the segment's number of tokens, this engine publishes its share as a segment, and another
// engine continues from it.
type OwnSegment struct{ Row, Begin, End int }

// Progress is an event of a row of a plan: wire.Progress….
type Progress struct {
	Row  int
	What uint8
}

// Job is a segment that this engine is to compute and publish.
type Job struct {
	ID uint64
	SegmentIDs
	Key profile.SegmentKey
	// If Begin is above 0, the engine computes only the tokens from Begin on. It first acquires
	// Left, the segment with the tokens before Begin, and continues from the states of that
	// segment.
	Begin  int
	Left   profile.SegmentKey
	Within time.Duration // after that the result is not needed
}

// WorkerQuery asks for jobs.
type WorkerQuery struct {
	Jobs     int // maximum number of jobs at once, including unfinished ones; 1 to wire.MaxWorkerJobs
	Pieces   bool
	Primers  []profile.PrimerID // primers after which the engine can capture segments; at most wire.MaxPrimers
	Queued   time.Duration      // duration of other work that the engine does first
	Declined []uint64           // jobs that the engine refuses
	Wait     time.Duration      // maximum wait for the answer
}

// Jobs is the answer to a WorkerQuery.
type Jobs struct {
	New       []Job    // in the order of execution
	Withdrawn []uint64 // jobs that are no longer needed
	Open      int      // number of unfinished jobs that the engine has
}

// PlanSegments asks which engines compute the missing segments of a prompt, and starts the work
// of the other engines. The caller uses WatchPlan to watch the rows that these engines compute.
// PlanSegments waits at most Timeouts.Transfer.
func (m *Model) PlanSegments(ctx context.Context, q *ParallelQuery) (Parallel, error) {
	request, tokens, err := m.planRequest(q)
	if err != nil {
		return Parallel{}, fmt.Errorf("plan: %w", err)
	}
	r, k, err := m.begin(ctx, wire.OpPlan, m.client.opt.Timeouts.Transfer)
	if err != nil {
		return Parallel{}, err
	}
	defer r.end(k)
	a := r.a
	if request.Primers.Present && !a.HasPrimers {
		return Parallel{}, fmt.Errorf("plan: segments after a primer: %w", ErrUnsupported)
	}
	request.Profile = r.profile
	if request.TokenOff, err = stageTokens(ctx, a, k, tokens); err != nil {
		return Parallel{}, fmt.Errorf("plan: %w", err)
	}
	var reply wire.PlanReply
	if err := r.ask(ctx, k, request, &reply); err != nil {
		return Parallel{}, err
	}
	p, ok := parallelOf(&reply, q)
	if !ok {
		return Parallel{}, a.Malformed("plan: %d workers and %d own rows for %d segments", len(reply.Workers), len(reply.OwnRows), len(q.Segments))
	}
	return p, nil
}

func (m *Model) planRequest(q *ParallelQuery) (*wire.PlanRequest, []uint32, error) {
	if n := len(q.Segments); n < 1 || n > wire.MaxPlanRows {
		return nil, nil, invalid("%d segments, want 1 to %d", n, wire.MaxPlanRows)
	}
	request := &wire.PlanRequest{Pieces: flag(q.Pieces), QueuedMicros: microseconds(q.Queued), WithinMs: milliseconds(q.Within)}
	var tokens []uint32
	for _, s := range q.Segments {
		if err := m.profile.CheckSpec(s.Spec); err != nil {
			return nil, nil, fmt.Errorf("%v: %w", err, ErrInvalid)
		}
		if len(s.Tokens) != s.Spec.Tokens || len(tokens)+len(s.Tokens) > wire.MaxPrompt {
			return nil, nil, invalid("%d token ids, want %d, and at most %d in all", len(s.Tokens), s.Spec.Tokens, wire.MaxPrompt)
		}
		key, ok := m.SegmentKey(s.Spec, s.Tokens)
		if !ok {
			return nil, nil, ErrUnavailable
		}
		tokens = append(tokens, s.Tokens...)
		request.Keys = append(request.Keys, key)
		request.Roles = append(request.Roles, uint8(s.Spec.Role))
		request.Heads = append(request.Heads, uint32(s.Spec.Head))
		request.Tails = append(request.Tails, uint32(s.Spec.Tail))
		request.Tokens = append(request.Tokens, uint32(s.Spec.Tokens))
		request.Primers.IDs = append(request.Primers.IDs, s.Spec.Primer)
		request.Primers.Present = request.Primers.Present || s.Spec.Primer != profile.PrimerID{}
	}
	return request, tokens, nil
}

// parallelOf converts a reply into a Parallel. It returns false for a reply that does not fit
// the query.
func parallelOf(reply *wire.PlanReply, q *ParallelQuery) (p Parallel, ok bool) {
	p = Parallel{
		ID: reply.Plan, Alone: reply.Alone, Expected: micros(reply.Micros), Serial: micros(reply.AloneMicros), Combine: reply.Combine,
	}
	if len(reply.Workers) != len(q.Segments) {
		return p, false
	}
	for i := range reply.Workers {
		p.Rows = append(p.Rows, ParallelRow{reply.Workers[i], micros(reply.RowMicros[i])})
	}
	for i := range reply.OwnRows {
		row, begin, end := reply.OwnRows[i], reply.OwnBegins[i], reply.OwnEnds[i]
		if int64(row) >= int64(len(q.Segments)) || begin >= end || int64(end) > int64(len(q.Segments[row].Tokens)) {
			return p, false
		}
		p.Own = append(p.Own, OwnSegment{int(row), int(begin), int(end)})
	}
	return p, true
}

// WatchPlan waits at most the duration wait for events of rows that other engines compute. open
// is the number of rows without a final event. ErrGone: the plan has ended. ErrBusy: another
// call watches the plan.
func (m *Model) WatchPlan(ctx context.Context, plan uint64, wait time.Duration) (list []Progress, open int, err error) {
	err = m.watch(ctx, &wire.WatchRequest{Plan: plan, WaitMs: milliseconds(wait)}, wait, func(reply *wire.WatchReply) {
		for i := range reply.Rows {
			list = append(list, Progress{int(reply.Rows[i]), reply.Progress[i]})
		}
		open = int(reply.Open)
	})
	return list, open, err
}

// EndPlan ends a plan. The daemon withdraws the jobs that other engines have not finished, and
// no longer protects finished rows from eviction.
func (m *Model) EndPlan(ctx context.Context, plan uint64) error {
	return m.watch(ctx, &wire.WatchRequest{Plan: plan, End: 1}, 0, func(*wire.WatchReply) {})
}

// WatchJobs makes this client a worker of the model and waits for jobs or their withdrawal. The
// client stays a worker for some seconds after the answer; another WatchJobs renews this. A job
// is done once Put has published its segment or returned ErrExists. ErrBusy: another call of the
// client waits for jobs.
func (m *Model) WatchJobs(ctx context.Context, q *WorkerQuery) (Jobs, error) {
	if q.Jobs < 1 || q.Jobs > wire.MaxWorkerJobs || len(q.Declined) > wire.MaxWorkerJobs || len(q.Primers) > wire.MaxPrimers {
		return Jobs{}, invalid("watch: %d jobs at once, %d declined, at most %d; %d primers, at most %d",
			q.Jobs, len(q.Declined), wire.MaxWorkerJobs, len(q.Primers), wire.MaxPrimers)
	}
	var jobs Jobs
	err := m.watch(ctx, &wire.WatchRequest{
		WaitMs: milliseconds(q.Wait), Pieces: flag(q.Pieces), Jobs: uint32(q.Jobs), QueuedMicros: microseconds(q.Queued), Declined: q.Declined,
		Primers: wire.WatchPrimersQuery{Present: len(q.Primers) > 0, IDs: wireHashes(q.Primers)},
	}, q.Wait, func(reply *wire.WatchReply) { jobs = jobsOf(reply) })
	return jobs, err
}

// jobsOf converts a reply. The result shares no memory with it.
func jobsOf(reply *wire.WatchReply) Jobs {
	jobs := Jobs{Withdrawn: slices.Clone(reply.Withdrawn), Open: int(reply.Open)}
	ids := slices.Clone(reply.IDs)
	for i := range reply.Jobs {
		n := int(reply.Tokens[i]) // Tokens[i] of the ids belong to job i
		spec := profile.SegmentSpec{Role: profile.Role(reply.Roles[i]), Head: int(reply.Heads[i]), Tail: int(reply.Tails[i]), Tokens: n}
		if reply.Primers.Present {
			spec.Primer = reply.Primers.IDs[i]
		}
		jobs.New = append(jobs.New, Job{
			ID: reply.Jobs[i], SegmentIDs: SegmentIDs{spec, ids[:n:n]}, Key: reply.Keys[i], Begin: int(reply.Begins[i]), Left: reply.Lefts[i],
			Within: micros(reply.Micros[i]),
		})
		ids = ids[n:]
	}
	return jobs
}

// EndWork ends this client's role as a worker. Unfinished jobs are computed elsewhere.
func (m *Model) EndWork(ctx context.Context) error {
	return m.watch(ctx, &wire.WatchRequest{End: 1}, 0, func(*wire.WatchReply) {})
}

// watch sends a request that the daemon may hold for the duration wait before it answers, and
// passes the reply to use, which keeps no part of it. The timeout of the request is a quarter
// longer than wait, plus Timeouts.Lookup or 1 s, whichever is longer.
func (m *Model) watch(ctx context.Context, q *wire.WatchRequest, wait time.Duration, use func(*wire.WatchReply)) error {
	r, k, err := m.begin(ctx, wire.OpWatch, wait+wait/4+max(m.client.opt.Timeouts.Lookup, time.Second))
	if err != nil {
		return err
	}
	defer r.end(k)
	q.Primers.Present = q.Primers.Present && r.a.HasPrimers
	q.Profile = r.profile
	var reply wire.WatchReply
	if err := r.ask(ctx, k, q, &reply); err != nil {
		return err
	}
	use(&reply)
	return nil
}

// microseconds converts a duration to the wire's unit and clamps it to the range.
func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), math.MaxUint32))
}

func micros(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
