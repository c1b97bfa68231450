package server

import (
	"context"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// This constant compiles only if the limits of package parallel fit into frames: a negative
// difference is no uint.
const _ = uint(wire.MaxPlanRows-parallel.MaxRows) + uint(wire.MaxJobTokens-parallel.MaxJobTokens) + uint(wire.MaxWorkerJobs-parallel.MaxWorkerJobs) + uint(parallel.MaxPrimers-wire.MaxPrimers)

// workScope returns the scope of a request about parallel segments: profile, tenant, fingerprint.
func (t *task) workScope(id tier.ProfileID, tenant tier.TenantID) parallel.Scope {
	s := parallel.Scope{Profile: id, Tenant: tenant}
	if p, ok := t.conn.server.store.Profile(id); ok {
		s.Fingerprint = p.Fingerprint()
	}
	return s
}

func totalTokens(list []uint32) (total uint64) {
	for _, n := range list {
		total += uint64(n)
	}
	return total
}

// workOps has the operations on parallel work: plan and watch.
type workOps struct{ *task }

// planIsLong has the same limits as reserveIsLong, since the keys are computed again here too.
func (t workOps) planIsLong(m *wire.PlanRequest) (bool, error) {
	return totalTokens(m.Tokens) > longReserve || len(m.Keys) > longFill, nil
}

// planSegments decodes the segments of a plan request. Its continuation asks other nodes, so that
// no worker is occupied meanwhile.
func (t workOps) planSegments(m *wire.PlanRequest) (wire.Message, error) {
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeaturePrimers, m.Primers.Present, "primers"); err != nil {
		return nil, err
	}
	total := totalTokens(m.Tokens)
	switch {
	case m.Pieces > 1:
		return nil, codes.Refuse(wire.Invalid, "pieces %d", m.Pieces)
	case total > wire.MaxPrompt:
		return nil, codes.Refuse(wire.Invalid, "tokens: plan of %d tokens, at most %d", total, wire.MaxPrompt)
	case !t.mayWait():
		return nil, codes.Refuse(wire.Busy, "too many requests are waiting")
	}
	ids, err := t.stagedTokens(m.TokenOff, int(total))
	if err != nil {
		return nil, err
	}
	q := &parallel.PlanQuery{
		Conn: t.conn.id, Scope: t.workScope(id, tenant), Pieces: m.Pieces == 1, Queued: microseconds(m.QueuedMicros),
		Within: milliseconds(m.WithinMs), Off: t.switchedOff(id),
	}
	ids = slices.Clone(ids) // the plan keeps the ids
	for i := range m.Keys {
		n := int(m.Tokens[i])
		q.Segments = append(q.Segments, parallel.Segment{
			Key:  m.Keys[i],
			Spec: profile.SegmentSpec{Role: profile.Role(m.Roles[i]), Head: cut(m.Heads[i]), Tail: cut(m.Tails[i]), Tokens: n},
			IDs:  ids[:n:n],
		})
		if m.Primers.Present {
			q.Segments[i].Spec.Primer = m.Primers.IDs[i]
		}
		ids = ids[n:]
	}
	t.rest = on(func(t workOps) (wire.Message, error) { return t.begun(q) })
	return nil, nil
}

// begun begins the plan, which asks the other nodes, and replies. If the client has disconnected
// meanwhile, begun ends the plan.
func (t workOps) begun(q *parallel.PlanQuery) (wire.Message, error) {
	w := t.conn.server.work
	a, err := w.Plan(t.ctx, q)
	if err != nil {
		return nil, err
	}
	if t.ctx.Err() != nil && a.Plan != 0 {
		_, _, _ = w.Watch(context.Background(), q.Conn, a.Plan, 0, true)
		return nil, t.ctx.Err()
	}
	if a.Plan != 0 {
		t.at.claims.planned(q.Segments)
	}
	out := &wire.PlanReply{
		Plan: a.Plan, Alone: uint8(a.Reason), Micros: micros(a.Expected), AloneMicros: micros(a.Alone), Workers: a.Workers, Combine: a.Combine,
	}
	for _, d := range a.Rows {
		out.RowMicros = append(out.RowMicros, micros(d))
	}
	for _, x := range a.Own {
		out.OwnRows = append(out.OwnRows, uint32(x.Row))
		out.OwnBegins = append(out.OwnBegins, uint32(x.Begin))
		out.OwnEnds = append(out.OwnEnds, uint32(x.End))
	}
	return out, nil
}

func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

// micros returns a duration in microseconds, saturated to the range of uint32.
func micros(d time.Duration) uint32 { return uint32(min(max(d.Microseconds(), 0), 1<<32-1)) }

// watch waits for rows of a plan, or for jobs of a worker, without occupying a worker of the queue.
func (t workOps) watch(m *wire.WatchRequest) (wire.Message, error) {
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeaturePrimers, m.Primers.Present, "primers"); err != nil {
		return nil, err
	}
	switch {
	case m.Plan != 0 && m.Primers.Present:
		return nil, codes.Refuse(wire.Invalid, "watch: plan %d with primers, which only workers send", m.Plan)
	case m.End > 1 || m.Pieces > 1:
		return nil, codes.Refuse(wire.Invalid, "end %d, pieces %d", m.End, m.Pieces)
	case m.Plan != 0 && (m.Jobs > 0 || m.Pieces > 0 || m.QueuedMicros > 0 || len(m.Declined) > 0):
		return nil, codes.Refuse(wire.Invalid, "watch: plan %d with jobs, pieces, queued micros or declined, which only workers send", m.Plan)
	case m.Plan == 0 && m.End == 0 && (m.Jobs == 0 || m.Jobs > wire.MaxWorkerJobs):
		return nil, codes.Refuse(wire.Invalid, "%d jobs at once, 1 to %d", m.Jobs, wire.MaxWorkerJobs)
	case m.Plan == 0 && m.End == 0 && !t.conn.server.work.Allows(tenant):
		return nil, codes.Refuse(wire.Denied, "watch: tenant %s takes no jobs: `parallel: true` is not set for it in the tenants file", t.conn.server.TenantName(tenant))
	case !t.mayWait():
		return nil, codes.Refuse(wire.Busy, "too many requests are waiting")
	}
	scope := t.workScope(id, tenant)
	t.rest = decoding(func(t workOps, m *wire.WatchRequest) (wire.Message, error) {
		left := time.Until(t.deadline)
		wait := min(milliseconds(m.WaitMs), left-left/8)
		if m.Plan != 0 {
			return t.watchPlan(m, wait)
		}
		return t.watchJobs(m, scope, wait)
	})
	return nil, nil
}

func (t workOps) watchPlan(m *wire.WatchRequest, wait time.Duration) (wire.Message, error) {
	list, left, err := t.conn.server.work.Watch(t.ctx, t.conn.id, m.Plan, wait, m.End == 1)
	if err != nil {
		return nil, err
	}
	out := &wire.WatchReply{Open: uint32(left)}
	for _, x := range list {
		out.Rows = append(out.Rows, uint32(x.Row))
		out.Progress = append(out.Progress, uint8(x.Progress))
	}
	return out, nil
}

func (t workOps) watchJobs(m *wire.WatchRequest, s parallel.Scope, wait time.Duration) (wire.Message, error) {
	list, gone, has, err := t.conn.server.work.Jobs(t.ctx, &parallel.JobsQuery{
		Conn: t.conn.id, Scope: s, Jobs: int(m.Jobs), Pieces: m.Pieces == 1, Queued: microseconds(m.QueuedMicros), Declined: m.Declined,
		End: m.End == 1, Wait: wait, Primers: primerIDs(m.Primers.IDs),
	}, wire.MaxJobTokens)
	if err != nil {
		return nil, err
	}
	out := &wire.WatchReply{Open: uint32(has), Withdrawn: gone, Primers: wire.WatchPrimers{Present: m.Primers.Present}}
	for i := range list {
		j := &list[i]
		out.Jobs = append(out.Jobs, j.ID)
		out.Keys = append(out.Keys, j.Key)
		out.Roles = append(out.Roles, uint8(j.Spec.Role))
		out.Heads = append(out.Heads, uint32(j.Spec.Head))
		out.Tails = append(out.Tails, uint32(j.Spec.Tail))
		out.Begins = append(out.Begins, uint32(j.Begin))
		out.Lefts = append(out.Lefts, j.Left)
		out.Micros = append(out.Micros, micros(j.Within))
		out.Tokens = append(out.Tokens, uint32(j.Spec.Tokens))
		out.IDs = append(out.IDs, j.IDs...)
		if m.Primers.Present {
			out.Primers.IDs = append(out.Primers.IDs, j.Spec.Primer)
		}
	}
	return out, nil
}

func primerIDs(hashes [][32]byte) []profile.PrimerID {
	ids := make([]profile.PrimerID, len(hashes))
	for i := range hashes {
		ids[i] = hashes[i]
	}
	return ids
}
