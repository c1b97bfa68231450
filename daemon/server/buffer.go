package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/slots"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// appendRows copies rows out of staging into a buffer, which it opens first if need
// be.
func (t *task) appendRows() (wire.Message, error) {
	store, m := t.conn.server.store, &t.scratch.rows
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	q := tiering.AppendQuery{
		Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Buffer: tier.LeaseID(m.Buffer),
		Capacity: cut(m.Capacity), Begin: cut(m.Begin), Rows: cut(m.Rows),
	}
	bytes, err := store.RowsBytes(id, q.Rows)
	if err != nil {
		return nil, err
	}
	at := t.sideOf(max(m.Buffer, m.Base)) // one of them is 0
	if q.Src, err = at.staged(m.StagingOff, bytes); err != nil {
		return nil, err
	}
	if m.Base != 0 {
		x, err := t.baseOf(at.slots, m.Base, id, &q.Base)
		if err != nil {
			return nil, err
		}
		if x != nil {
			defer at.slots.DoneReading(x)
		}
	}
	got, err := t.at.session.Append(t.ctx, &q)
	return t.bufferReply(&got, err)
}

// baseOf resolves what a buffer is opened over: a slot, which the caller ends the
// reading of, or else the lease of a checkpoint.
func (t *task) baseOf(in *slots.Slots, lease uint64, id tier.ProfileID, base *tiering.From) (*slots.Slot, error) {
	bytes, err := t.conn.server.store.ReplayBytes(id)
	if err != nil {
		return nil, err
	}
	x, err := in.ReadFront(lease, bytes)
	switch {
	case err != nil:
		return nil, err
	case x == nil:
		*base = tiering.From{Kind: tiering.FromCheckpoint, Lease: tier.LeaseID(lease)}
	default:
		*base = tiering.From{Kind: tiering.FromState, State: in.Ref(x, bytes)}
	}
	return x, nil
}

func (t *task) acceptRows() (wire.Message, error) {
	m := &t.scratch.accept
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	got, err := t.at.session.Accept(&tiering.AcceptQuery{
		Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Buffer: tier.LeaseID(m.Buffer), Tokens: cut(m.Tokens),
	})
	return t.bufferReply(&got, err)
}

func (t *task) bufferReply(b *tiering.BufferState, err error) (wire.Message, error) {
	if err != nil {
		return nil, err
	}
	return &wire.AppendReply{Buffer: uint64(b.Buffer), Begin: uint32(b.Begin), Accepted: uint32(b.Accepted), End: uint32(b.End)}, nil
}

// replayRows writes the states behind a token of a buffer into a slot.
func (t *task) replayRows() (wire.Message, error) {
	m := &t.scratch.replay
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if m.Flush > 1 {
		return nil, codes.Refuse(wire.Invalid, "flush %d", m.Flush)
	}
	bytes, err := t.conn.server.store.ReplayBytes(id)
	if err != nil {
		return nil, err
	}
	q := tiering.ReplayQuery{
		Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Buffer: tier.LeaseID(m.Buffer), Token: cut(m.Token), Flush: m.Flush == 1,
	}
	return t.intoSlot(t.sideOf(m.Buffer).slots, m.Into, bytes, nil, func(out gpuipc.Ref) error {
		q.Out = out
		return t.at.session.Replay(t.ctx, &q)
	})
}
