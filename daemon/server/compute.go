package server

import (
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/slots"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// computeOps has the operations that compute states and move rows: compose, rotate, assemble, and those
// on buffers of rows (see buffer.go).
type computeOps struct{ *task }

// plan converts the columns of a wire plan into spans. The spans' inputs are not set yet.
func (t computeOps) plan(m *wire.Plan) plan.Plan {
	p := plan.Plan{Begin: int(m.Begin), End: int(m.End), Spans: t.scratch.spans[:0]}
	for i := range m.Kinds {
		p.Spans = append(p.Spans, plan.Span{
			Kind: plan.SpanKind(m.Kinds[i]), Lease: tier.LeaseID(m.Leases[i]),
			Start: int(m.Starts[i]), Count: int(m.Counts[i]),
		})
	}
	t.scratch.spans = p.Spans
	return p
}

// side is the memory in which a request runs: host memory or the memory of a device.
type side struct {
	slots *slots.Slots
	// staged returns a range of the staging that the client writes.
	staged func(off uint64, bytes int64) (gpuipc.Ref, error)
}

// side returns the memory that the leases of a plan are in. A plan without leases runs on the
// device if one of the named slots is there, otherwise on the host.
func (t computeOps) side(from plan.From, p *plan.Plan, named ...uint64) (side, error) {
	host := side{t.at.slots, t.at.staged}
	l := t.at.gpu.Load()
	if l == nil {
		return host, nil
	}
	device := side{l.slots, l.staged}
	switch place, err := t.at.session.Plans().PlaceOfPlan(from, p); {
	case err != nil:
		return host, err
	case place == tier.PlaceHBM, place == tier.PlaceNone && slices.ContainsFunc(named, l.slots.Has):
		return device, nil
	}
	return host, nil
}

// sideOf returns the memory that a lease, buffer or slot is in. An unknown id counts as one of the
// host.
func (t computeOps) sideOf(id uint64) side {
	if l := t.at.gpu.Load(); l != nil && id != 0 {
		if t.at.session.Plans().PlaceOf(tier.LeaseID(id)) == tier.PlaceHBM || l.slots.Has(id) {
			return side{l.slots, l.staged}
		}
	}
	return side{t.at.slots, t.at.staged}
}

// planScope returns the scope of a request (profile, tenant, rank) and the profile's geometry.
func (t computeOps) planScope(profile, rank uint32) (plan.Scope, *plan.Geometry, error) {
	id, tenant, err := t.scope(profile)
	if err != nil {
		return plan.Scope{}, nil, err
	}
	g, err := t.conn.server.store.Geometry(id)
	return plan.Scope{Profile: id, Tenant: tenant, Rank: rankOf(rank)}, g, err
}

// inputs sets the inputs of recomputed spans: their (T, S), each of the given number of bytes, at
// the given offsets of staging.
func (s *side) inputs(p *plan.Plan, offsets []uint64, bytes int64) (err error) {
	for i, off := range offsets {
		if off == wire.None {
			continue
		}
		if p.Spans[i].Input, err = s.staged(off, bytes); err != nil {
			return err
		}
	}
	return nil
}

func (t computeOps) compose(m *wire.ComposeRequest) (wire.Message, error) {
	sc, g, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	layer := int(m.Layer)
	inputBytes, err := g.InputBytes(layer)
	if err != nil {
		return nil, err
	}
	q := plan.ComposeQuery{Scope: sc, Layer: layer}
	q.From = plan.From{Kind: plan.FromKind(m.From), Lease: tier.LeaseID(m.FromLease)}
	q.Plan = t.plan(&m.Plan)
	at, err := t.side(q.From, &q.Plan, m.FromLease, m.Into)
	if err == nil {
		err = at.inputs(&q.Plan, m.Plan.Inputs, inputBytes)
	}
	if err != nil {
		return nil, err
	}
	var own *slots.Slot
	if m.From == wire.FromSlot {
		if own, err = stateFrom(at.slots, m, g, &q.From); err != nil {
			return nil, err
		}
		defer at.slots.DoneReading(own)
	}
	bytes, err := g.ComposeBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.intoSlot(at.slots, m.Into, bytes, own, func(out gpuipc.Ref) error {
		if err := apart(q.From.State, out); err != nil {
			return err
		}
		q.Out = out
		return t.at.session.Plans().Compose(t.ctx, &q)
	})
}

// stateFrom returns the slot with the states from which compose starts, and stores their place in
// the parameter from. The caller must release the slot with DoneReading.
func stateFrom(in *slots.Slots, m *wire.ComposeRequest, g *plan.Geometry, from *plan.From) (*slots.Slot, error) {
	bytes, err := g.StateBytes(int(m.Layer))
	if err != nil {
		return nil, err
	}
	x, err := in.Read(m.FromLease, m.FromOff, bytes)
	if err != nil {
		return nil, err
	}
	from.Lease = 0
	from.State = gpuipc.Ref{Region: in.Region(), Extents: []gpuipc.Extent{{Off: int64(m.FromOff), Len: bytes}}}
	return x, nil
}

// apart refuses a result that partly overwrites the states it is computed from. A result at exactly
// the same range is allowed, since the kernels support it.
func apart(from, out gpuipc.Ref) error {
	if from.Absent() || len(out.Extents) == 0 || from.Equal(out) {
		return nil
	}
	a, b := from.Extents[0], out.Extents[0]
	if a.Off < b.Off+b.Len && b.Off < a.Off+a.Len {
		return codes.Refuse(wire.Invalid, "states [%d, +%d) overlap the result [%d, +%d)", a.Off, a.Len, b.Off, b.Len)
	}
	return nil
}

// intoSlot calls the function work with the memory of a slot. The slot has the id in the parameter
// into; 0 = a new slot. The parameter own is the slot that work reads; nil = none.
func (t computeOps) intoSlot(slots *slots.Slots, into uint64, bytes int64, own *slots.Slot, work func(gpuipc.Ref) error) (*wire.ComposeReply, error) {
	x, err := slots.Open(into, bytes, own, func() uint64 { return uint64(t.conn.server.store.NewLeaseID()) })
	if err != nil {
		return nil, err
	}
	err = work(slots.Ref(x, bytes))
	slots.Done(x, err)
	if err != nil {
		return nil, err
	}
	return &wire.ComposeReply{Lease: x.Lease, Off: uint64(x.Extent.Off), Bytes: uint64(bytes)}, nil
}

// placement holds the decoded fields that rotate and assemble have in common.
type placement struct {
	from plan.From
	plan plan.Plan
	dest plan.Destination
	at   side
}

func (t computeOps) placement(m *wire.RotateRequest, id tier.ProfileID) (p placement, err error) {
	for _, in := range m.Plan.Inputs {
		if in != wire.None {
			return p, codes.Refuse(wire.Invalid, "%v takes no inputs", t.header.Op)
		}
	}
	p.plan = t.plan(&m.Plan)
	if m.From != wire.FromZero && m.From != wire.FromCheckpoint {
		return p, codes.Refuse(wire.Invalid, "%v from %d", t.header.Op, m.From)
	}
	p.from = plan.From{Kind: plan.FromKind(m.From), Lease: tier.LeaseID(m.FromLease)}
	if p.at, err = t.side(p.from, &p.plan, m.Into); err != nil {
		return p, err
	}
	switch m.Dest {
	case wire.DestSlot:
		if m.Memory != 0 || len(m.Blocks) > 0 {
			return p, codes.Refuse(wire.Invalid, "memory %d and %d blocks with a slot as destination", m.Memory, len(m.Blocks))
		}
	case wire.DestMemory:
		p.dest.Blocks = m.Blocks
		p.dest.Memory, err = t.at.memory(m.Memory, id)
	default:
		err = codes.Refuse(wire.Invalid, "destination %d", m.Dest)
	}
	return p, err
}

func (t computeOps) rotate(m *wire.RotateRequest) (wire.Message, error) {
	sc, g, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	p, err := t.placement(m, sc.Profile)
	if err != nil {
		return nil, err
	}
	q := plan.RotateQuery{Scope: sc, Layer: int(m.Layer), From: p.from, Plan: p.plan, Dest: p.dest}
	bytes, rows, err := g.RotateBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.carryOut(p.at.slots, m, bytes, rows, func(out gpuipc.Ref) error {
		q.Dest.Out = out
		return t.at.session.Plans().Rotate(t.ctx, &q)
	})
}

func (t computeOps) assemble(m *wire.AssembleRequest) (wire.Message, error) {
	sc, g, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	p, err := t.placement(&m.RotateRequest, sc.Profile)
	if err != nil {
		return nil, err
	}
	q := plan.AssembleQuery{Scope: sc, From: p.from, Plan: p.plan, Dest: p.dest}
	bytes, rows, err := g.AssembleBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.carryOut(p.at.slots, &m.RotateRequest, bytes, rows, func(out gpuipc.Ref) error {
		q.Dest.Out = out
		return t.at.session.Plans().Assemble(t.ctx, &q)
	})
}

// carryOut runs a rotate or an assemble. If no bytes go into a slot, the whole result is in engine
// memory, and the reply has no lease.
func (t computeOps) carryOut(slots *slots.Slots, m *wire.RotateRequest, bytes int64, rows int, work func(gpuipc.Ref) error) (wire.Message, error) {
	if bytes == 0 && m.Dest == wire.DestMemory {
		if m.Into != 0 {
			return nil, codes.Refuse(wire.Invalid, "slot %d where nothing is written into a slot", m.Into)
		}
		if err := work(gpuipc.Ref{}); err != nil {
			return nil, err
		}
		return &wire.RotateReply{Rows: uint32(rows)}, nil
	}
	r, err := t.intoSlot(slots, m.Into, bytes, nil, work)
	if err != nil {
		return nil, err
	}
	return &wire.RotateReply{Lease: r.Lease, Off: r.Off, Bytes: r.Bytes, Rows: uint32(rows)}, nil
}
