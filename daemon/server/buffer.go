package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/slots"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// appendRows copies rows from staging into a buffer. It opens the buffer first if necessary.
func (t computeOps) appendRows(m *wire.AppendRequest) (wire.Message, error) {
	sc, g, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	q := plan.AppendQuery{
		Scope: sc, Buffer: tier.LeaseID(m.Buffer),
		Capacity: cut(m.Capacity), Begin: cut(m.Begin), Rows: cut(m.Rows),
	}
	bytes, err := g.RowsBytes(q.Rows)
	if err != nil {
		return nil, err
	}
	at := t.sideOf(max(m.Buffer, m.Base)) // either Buffer or Base is 0
	if q.Src, err = at.staged(m.StagingOff, bytes); err != nil {
		return nil, err
	}
	if m.Base != 0 {
		x, err := baseOf(at.slots, m.Base, g, &q.Base)
		if err != nil {
			return nil, err
		}
		if x != nil {
			defer at.slots.DoneReading(x)
		}
	}
	got, err := t.at.session.Plans().Append(t.ctx, &q)
	return bufferReply(&got, err)
}

// baseOf resolves the base of a new buffer, which is a slot or the lease of a checkpoint. It
// returns the slot, which the caller must release with DoneReading, or nil for a checkpoint.
func baseOf(in *slots.Slots, lease uint64, g *plan.Geometry, base *plan.From) (*slots.Slot, error) {
	bytes := g.ReplayBytes()
	x, err := in.ReadFront(lease, bytes)
	switch {
	case err != nil:
		return nil, err
	case x == nil:
		*base = plan.From{Kind: plan.FromCheckpoint, Lease: tier.LeaseID(lease)}
	default:
		*base = plan.From{Kind: plan.FromState, State: in.Ref(x, bytes)}
	}
	return x, nil
}

func (t computeOps) acceptRows(m *wire.AcceptRequest) (wire.Message, error) {
	sc, _, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	got, err := t.at.session.Plans().Accept(&plan.AcceptQuery{
		Scope: sc, Buffer: tier.LeaseID(m.Buffer), Tokens: cut(m.Tokens),
	})
	return bufferReply(&got, err)
}

func bufferReply(b *plan.BufferState, err error) (wire.Message, error) {
	if err != nil {
		return nil, err
	}
	return &wire.AppendReply{Buffer: uint64(b.Buffer), Begin: uint32(b.Begin), Accepted: uint32(b.Accepted), End: uint32(b.End)}, nil
}

// replayRows writes the states after one token of a buffer into a slot.
func (t computeOps) replayRows(m *wire.ReplayRequest) (wire.Message, error) {
	sc, g, err := t.planScope(m.Profile, m.Rank)
	if err != nil {
		return nil, err
	}
	if m.Flush > 1 {
		return nil, codes.Refuse(wire.Invalid, "flush %d", m.Flush)
	}
	bytes := g.ReplayBytes()
	q := plan.ReplayQuery{
		Scope: sc, Buffer: tier.LeaseID(m.Buffer), Token: cut(m.Token), Flush: m.Flush == 1,
	}
	return t.intoSlot(t.sideOf(m.Buffer).slots, m.Into, bytes, nil, func(out gpuipc.Ref) error {
		q.Out = out
		return t.at.session.Plans().Replay(t.ctx, &q)
	})
}
