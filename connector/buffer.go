package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
)

// A Buffer holds rows of recent tokens that the daemon keeps next to a state: rows of accepted
// tokens, then rows of drafts. The buffer exists until its Release or until the connection ends.
// Only one goroutine at a time may use a Buffer.
type Buffer struct {
	held
	begin, accepted, end int
	lost                 bool
}

// Begin returns the prompt position of the first row, which is the number of tokens that the
// state in OpenQuery.From covers.
func (b *Buffer) Begin() int { return b.begin }

// Accepted returns the position up to which token rows are certain. Drafts follow, up to End.
func (b *Buffer) Accepted() int { return b.accepted }

// End returns the prompt position of the next appended row.
func (b *Buffer) End() int { return b.end }

// Valid is Lease.Valid for a buffer.
func (b *Buffer) Valid() bool { return b != nil && !b.lost && b.valid() }

// Release releases the buffer and its rows; see Lease.Release.
func (b *Buffer) Release() {
	if b != nil {
		b.release()
	}
}

// OpenQuery opens a buffer.
type OpenQuery struct {
	// From is the state before the first row: a checkpoint of Begin tokens, a slot, or zero
	// states. A slot must begin with states in profile.CheckpointLayout(0); the daemon copies
	// them.
	From     From
	Begin    int // prompt position of the first row
	Capacity int // maximum number of rows
}

// OpenBuffer opens a buffer without rows. The checkpoint or slot in q.From may be released
// afterwards. The daemon reserves memory for Capacity rows in the tenant's share of the private
// pool. It returns ErrFull or ErrQuota if that share has no room.
func (m *Model) OpenBuffer(ctx context.Context, q *OpenQuery) (*Buffer, error) {
	if q.Begin < 0 || q.Capacity < 1 || q.Begin > maxInt32 || q.Capacity > maxInt32 {
		return nil, invalid("buffer of %d rows from token %d", q.Capacity, q.Begin)
	}
	r, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer r.a.Release()
	_, lease, off, err := q.From.encode(r.a)
	if err != nil {
		return nil, err
	}
	if s := q.From.Slot; s != nil && off != uint64(s.off) {
		return nil, invalid("a buffer must begin at the start of a slot")
	}
	begin := uint32(q.Begin)
	want := wire.AppendReply{Begin: begin, Accepted: begin, End: begin}
	reply, err := m.append(ctx, r, &wire.AppendRequest{Base: lease, Begin: begin, Capacity: uint32(q.Capacity)}, nil, want)
	if err != nil {
		return nil, err
	}
	if !r.a.Retain() {
		return nil, link.ErrNotAttached
	}
	b := &Buffer{held: held{a: r.a, tenant: r.tenant, id: reply.Buffer}}
	b.apply(reply)
	return b, nil
}

const maxInt32 = 1<<31 - 1

// Append adds the rows of the next n tokens as drafts. rows has the layout
// profile.BufferLayout(n). ErrFull: the rows do not fit. After ErrFull, ErrInvalid and ErrBusy
// the buffer is unchanged. After any other error its content is unknown, and it can only be
// released.
func (m *Model) Append(ctx context.Context, b *Buffer, n int, rows []byte) error {
	if want := m.profile.BufferLayout(n).Bytes; n < 1 || n > maxInt32 || int64(len(rows)) != want {
		return invalid("%d rows in %d bytes, want %d", n, len(rows), want)
	}
	r, id, err := m.use(b)
	if err != nil {
		return err
	}
	defer r.a.Release()
	want := b.state(id)
	want.End += uint32(n)
	q := &wire.AppendRequest{Buffer: id, Begin: uint32(b.end), Rows: uint32(n)}
	return b.outcome(m.append(ctx, r, q, rows, want))
}

// Accept keeps the first n drafts and drops the others. An error has the same effect on the
// buffer as an error of Append.
func (m *Model) Accept(ctx context.Context, b *Buffer, n int) error {
	if n < 0 || n > maxInt32 {
		return invalid("%d drafts", n)
	}
	r, id, err := m.use(b)
	if err != nil {
		return err
	}
	defer r.a.Release()
	k := r.a.Get(ctx, wire.OpAccept, m.client.opt.Timeouts.Lookup)
	defer r.a.Put(k)
	want := b.state(id)
	want.Accepted += uint32(n)
	want.End = want.Accepted
	q := &wire.AcceptRequest{Profile: r.profile, Rank: uint32(m.binding.Rank), Buffer: id, Tokens: uint32(n)}
	return b.outcome(r.askBuffer(ctx, k, q, want))
}

// ReplayQuery asks for states out of a buffer.
type ReplayQuery struct {
	Token int   // number of prompt tokens that the states cover; at most Accepted
	Flush bool  // the rows before Token become part of the base and are removed from the buffer
	Into  *Slot // see ComposeQuery
}

// Replay returns the states and convolution tails after an accepted token, in the layout
// profile.CheckpointLayout(0). They are bit-identical to the result of decoding token by token.
// If q.Flush is set, an error has the same effect on the buffer as an error of Append.
func (m *Model) Replay(ctx context.Context, b *Buffer, q *ReplayQuery) (*Slot, error) {
	if q.Token < b.begin || q.Token > b.accepted {
		return nil, invalid("replay to token %d of a buffer of [%d, %d)", q.Token, b.begin, b.accepted)
	}
	r, id, err := m.use(b)
	if err != nil {
		return nil, err
	}
	defer r.a.Release()
	slot, err := m.replay(ctx, r, &wire.ReplayRequest{Buffer: id, Token: uint32(q.Token), Flush: flag(q.Flush)}, q.Into, func(err error) {
		b.lost = b.lost || q.Flush && unsure(err)
	})
	if err == nil && q.Flush {
		b.begin = q.Token
	}
	return slot, err
}

// replay requests states that the daemon computes from rows. If the request was sent and failed,
// replay passes the error to the function failed.
func (m *Model) replay(ctx context.Context, r *registration, q *wire.ReplayRequest, to *Slot, failed func(error)) (*Slot, error) {
	k := r.a.Get(ctx, wire.OpReplay, m.client.opt.Timeouts.Transfer)
	defer r.a.Put(k)
	k.Late.Cancel = true
	q.Profile, q.Rank = r.profile, uint32(m.binding.Rank)
	var err error
	if q.Into, err = into(k, r.a, to); err != nil {
		return nil, err
	}
	var reply wire.ComposeReply
	if err := r.ask(ctx, k, q, &reply); err != nil {
		to.spoil(err)
		failed(err)
		return nil, err
	}
	return r.slot(wire.OpReplay, &wire.RotateReply{Lease: reply.Lease, Off: reply.Off, Bytes: reply.Bytes}, to, false)
}

// append sends an append request with the given rows; if rows is nil, the request has no rows.
// want is the state that the buffer must have afterwards.
func (m *Model) append(ctx context.Context, r *registration, q *wire.AppendRequest, rows []byte, want wire.AppendReply) (*wire.AppendReply, error) {
	k := r.a.Get(ctx, wire.OpAppend, m.client.opt.Timeouts.Transfer)
	defer r.a.Put(k)
	k.Late.Cancel, k.Late.GiveBack = true, q.Buffer == 0
	q.Profile, q.Rank = r.profile, uint32(m.binding.Rank)
	if rows != nil {
		mem, off, err := r.a.Stage(ctx, k, int64(len(rows)))
		if err != nil {
			return nil, fmt.Errorf("append: rows: %w", err)
		}
		copy(mem, rows)
		q.StagingOff = off
	}
	return r.askBuffer(ctx, k, q, want)
}

// askBuffer sends a request and returns the buffer's state after it. The state follows from the
// request, so askBuffer refuses a reply that differs from the parameter want. want.Buffer is 0
// for a new buffer, whose id the daemon chooses.
func (r *registration) askBuffer(ctx context.Context, k *link.Call, q wire.Message, want wire.AppendReply) (*wire.AppendReply, error) {
	reply := new(wire.AppendReply)
	if err := r.ask(ctx, k, q, reply); err != nil {
		return nil, err
	}
	want.Buffer = cmp.Or(want.Buffer, reply.Buffer)
	if reply.Buffer == 0 || *reply != want || reply.End > maxInt32 {
		return nil, r.a.Malformed("%s: buffer %d of [%d, %d, %d), want buffer %d of [%d, %d, %d)",
			k.Op, reply.Buffer, reply.Begin, reply.Accepted, reply.End, want.Buffer, want.Begin, want.Accepted, want.End)
	}
	return reply, nil
}

// use does what enter does, for a call on a buffer, and also returns the buffer's id. It fails
// for a released or lost buffer.
func (m *Model) use(b *Buffer) (*registration, uint64, error) {
	r, err := m.enter()
	if err != nil {
		return nil, 0, err
	}
	id, err := b.lease(r.a)
	if err == nil && b.lost {
		err = fmt.Errorf("buffer %d: an earlier call may have changed it: %w", b.id, ErrGone)
	}
	if err != nil {
		r.a.Release()
		return nil, 0, err
	}
	return r, id, nil
}

// state returns the buffer's state as the daemon last reported it.
func (b *Buffer) state(id uint64) wire.AppendReply {
	return wire.AppendReply{Buffer: id, Begin: uint32(b.begin), Accepted: uint32(b.accepted), End: uint32(b.end)}
}

// apply stores the state that a reply reports.
func (b *Buffer) apply(reply *wire.AppendReply) {
	b.begin, b.accepted, b.end = int(reply.Begin), int(reply.Accepted), int(reply.End)
}

// outcome ends a call. If the daemon may have executed the failed request, the buffer is lost.
func (b *Buffer) outcome(reply *wire.AppendReply, err error) error {
	if err != nil {
		b.lost = b.lost || unsure(err)
		return err
	}
	b.apply(reply)
	return nil
}

// unsure reports whether the daemon may have executed a request that failed with err.
func unsure(err error) bool {
	return !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrQuota)
}
