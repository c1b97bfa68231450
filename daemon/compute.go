package daemon

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
)

// plan turns the columns of a plan into spans. inputBytes is the size of the
// (T, S) of a recomputed span.
func (t *task) plan(m *wire.Plan, inputBytes int64) (tiering.Plan, error) {
	p := tiering.Plan{Begin: int(m.Begin), End: int(m.End), Spans: t.scratch.spans[:0]}
	for i := range m.Kinds {
		s := tiering.Span{
			Kind: tiering.SpanKind(m.Kinds[i]), Lease: tiering.LeaseID(m.Leases[i]),
			Start: int(m.Starts[i]), Count: int(m.Counts[i]),
		}
		if m.Inputs[i] != wire.None {
			var err error
			if s.Input, err = t.at.staged(m.Inputs[i], inputBytes); err != nil {
				return p, err
			}
		}
		p.Spans = append(p.Spans, s)
	}
	t.scratch.spans = p.Spans
	return p, nil
}

func (t *task) compose() (wire.Message, error) {
	store, m := t.conn.server.store, &t.scratch.compose
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	layer := int(m.Layer)
	inputBytes, err := store.InputBytes(id, layer)
	if err != nil {
		return nil, err
	}
	q := tiering.ComposeQuery{Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Layer: layer}
	q.From = tiering.From{Kind: tiering.FromKind(m.From), Lease: tiering.LeaseID(m.FromLease)}
	if q.Plan, err = t.plan(&m.Plan, inputBytes); err != nil {
		return nil, err
	}
	var own *slot
	if m.From == wire.FromSlot {
		if own, err = t.stateFrom(m, id, &q.From); err != nil {
			return nil, err
		}
		defer t.at.slots.doneReading(own)
	}
	bytes, err := store.ComposeBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.intoSlot(m.Into, bytes, own, func(out gpuipc.Ref) error {
		if err := apart(q.From.State, out); err != nil {
			return err
		}
		q.Out = out
		return t.at.session.Compose(t.ctx, &q)
	})
}

// stateFrom resolves states that lie in a slot; the caller ends the reading.
func (t *task) stateFrom(m *wire.ComposeRequest, id tiering.ProfileID, from *tiering.From) (*slot, error) {
	bytes, err := t.conn.server.store.StateBytes(id, int(m.Layer))
	if err != nil {
		return nil, err
	}
	x, err := t.at.slots.read(m.FromLease, m.FromOff, bytes)
	if err != nil {
		return nil, err
	}
	from.Lease = 0
	from.State = gpuipc.Ref{Region: t.at.slots.region, Extents: []gpuipc.Extent{{Off: int64(m.FromOff), Len: bytes}}}
	return x, nil
}

// apart refuses a result that would overwrite the states it is computed from,
// unless it takes exactly their place, which the kernels allow.
func apart(from, out gpuipc.Ref) error {
	if from.Absent() || len(out.Extents) == 0 || from.Equal(out) {
		return nil
	}
	a, b := from.Extents[0], out.Extents[0]
	if a.Off < b.Off+b.Len && b.Off < a.Off+a.Len {
		return refuse(wire.Invalid, "states [%d, +%d) overlap the result [%d, +%d)", a.Off, a.Len, b.Off, b.Len)
	}
	return nil
}

// intoSlot lets work write bytes into the slot of lease into, or a new one when
// that is 0. own is the slot that work reads, or nil.
func (t *task) intoSlot(into uint64, bytes int64, own *slot, work func(gpuipc.Ref) error) (*wire.ComposeReply, error) {
	slots := t.at.slots
	x, err := slots.open(into, bytes, own, func() uint64 { return uint64(t.conn.server.store.NewLeaseID()) })
	if err != nil {
		return nil, err
	}
	err = work(slots.ref(x, bytes))
	slots.done(x, err)
	if err != nil {
		return nil, err
	}
	return &wire.ComposeReply{Lease: x.lease, Off: uint64(x.extent.Off), Bytes: uint64(bytes)}, nil
}

// placement is what rotate and assemble ask alike.
type placement struct {
	from tiering.From
	plan tiering.Plan
	dest tiering.Destination
}

func (t *task) placement(m *wire.RotateRequest, id tiering.ProfileID) (p placement, err error) {
	for _, in := range m.Plan.Inputs {
		if in != wire.None {
			return p, refuse(wire.Invalid, "%v takes no inputs", t.header.Op)
		}
	}
	if p.plan, err = t.plan(&m.Plan, 0); err != nil {
		return p, err
	}
	if m.From != wire.FromZero && m.From != wire.FromCheckpoint {
		return p, refuse(wire.Invalid, "%v from %d", t.header.Op, m.From)
	}
	p.from = tiering.From{Kind: tiering.FromKind(m.From), Lease: tiering.LeaseID(m.FromLease)}
	switch m.Dest {
	case wire.DestSlot:
		if m.Memory != 0 || len(m.Blocks) > 0 {
			return p, refuse(wire.Invalid, "memory %d and %d blocks with a slot as destination", m.Memory, len(m.Blocks))
		}
	case wire.DestMemory:
		p.dest.Blocks = m.Blocks
		p.dest.Memory, err = t.at.memory(m.Memory, id)
	default:
		err = refuse(wire.Invalid, "destination %d", m.Dest)
	}
	return p, err
}

func (t *task) rotate() (wire.Message, error) {
	m := &t.scratch.rotate
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	p, err := t.placement(m, id)
	if err != nil {
		return nil, err
	}
	q := tiering.RotateQuery{Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Layer: int(m.Layer), From: p.from, Plan: p.plan, Dest: p.dest}
	bytes, rows, err := t.conn.server.store.RotateBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.place(m, bytes, rows, func(out gpuipc.Ref) error {
		q.Dest.Out = out
		return t.at.session.Rotate(t.ctx, &q)
	})
}

func (t *task) assemble() (wire.Message, error) {
	m := &t.scratch.assemble
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	p, err := t.placement(&m.RotateRequest, id)
	if err != nil {
		return nil, err
	}
	q := tiering.AssembleQuery{Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), From: p.from, Plan: p.plan, Dest: p.dest}
	bytes, rows, err := t.conn.server.store.AssembleBytes(&q)
	if err != nil {
		return nil, err
	}
	return t.place(&m.RotateRequest, bytes, rows, func(out gpuipc.Ref) error {
		q.Dest.Out = out
		return t.at.session.Assemble(t.ctx, &q)
	})
}

// place runs a rotate or assemble. Without bytes for a slot everything goes to
// engine memory and the reply names no lease.
func (t *task) place(m *wire.RotateRequest, bytes int64, rows int, work func(gpuipc.Ref) error) (wire.Message, error) {
	if bytes == 0 && m.Dest == wire.DestMemory {
		if m.Into != 0 {
			return nil, refuse(wire.Invalid, "slot %d where nothing is written into a slot", m.Into)
		}
		if err := work(gpuipc.Ref{}); err != nil {
			return nil, err
		}
		return &wire.RotateReply{Rows: uint32(rows)}, nil
	}
	r, err := t.intoSlot(m.Into, bytes, nil, work)
	if err != nil {
		return nil, err
	}
	return &wire.RotateReply{Lease: r.Lease, Off: r.Off, Bytes: r.Bytes, Rows: uint32(rows)}, nil
}
