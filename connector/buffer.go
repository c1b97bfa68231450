package connector

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
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

func (b *Buffer) base() *held {
	if b == nil {
		return nil
	}
	return &b.held
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
	if err := m.checkRows(n, rows); err != nil {
		return err
	}
	return m.appendRows(ctx, b, n, int64(len(rows)), func(to []byte) { copy(to, rows) })
}

func (m *Model) checkRows(n int, rows []byte) error {
	if want := m.profile.BufferLayout(n).Bytes; n < 1 || n > maxInt32 || int64(len(rows)) != want {
		return invalid("%d rows in %d bytes, want %d", n, len(rows), want)
	}
	return nil
}

// A Tree is a tree of drafts. The engine verifies all drafts in one step, with a mask of
// ancestors.
type Tree struct {
	Parents []int  // for each draft, the index of its parent draft; -1 = it follows the buffer's last row
	Rows    []byte // rows of all drafts, in profile.BufferLayout(len(Parents))
}

// AppendPath appends the rows of one path of a tree, from the root of the tree on. path has the
// indices of the drafts. Branches outside the path are not sent, because each row of a buffer
// must follow the previous row. ErrInvalid: path is not a path of the tree.
func (m *Model) AppendPath(ctx context.Context, b *Buffer, t *Tree, path []int) error {
	if err := m.checkRows(len(t.Parents), t.Rows); err != nil {
		return err
	}
	if err := t.check(path); err != nil {
		return err
	}
	from, to := m.profile.BufferLayout(len(t.Parents)), m.profile.BufferLayout(len(path))
	return m.appendRows(ctx, b, len(path), to.Bytes, func(out []byte) {
		for p := range to.Parts {
			row := int(to.Parts[p].Len) / len(path)
			for i, draft := range path {
				copy(out[int(to.Parts[p].Off)+i*row:][:row], t.Rows[int(from.Parts[p].Off)+draft*row:])
			}
		}
	})
}

// check checks that each draft comes after its parent, and that path is a chain of parents
// and children.
func (t *Tree) check(path []int) error {
	for i, parent := range t.Parents {
		if parent < -1 || parent >= i {
			return invalid("draft %d follows draft %d", i, parent)
		}
	}
	if len(path) == 0 {
		return invalid("empty path of drafts")
	}
	last := -1
	for _, draft := range path {
		if draft < 0 || draft >= len(t.Parents) || t.Parents[draft] != last {
			return invalid("draft %d does not follow draft %d of %d", draft, last, len(t.Parents))
		}
		last = draft
	}
	return nil
}

// appendRows adds n rows, which fill writes to staging.
func (m *Model) appendRows(ctx context.Context, b *Buffer, n int, bytes int64, fill func([]byte)) error {
	r, id, err := m.use(b)
	if err != nil {
		return err
	}
	defer r.a.Release()
	want := b.state(id)
	want.End += uint32(n)
	q := &wire.AppendRequest{Buffer: id, Begin: uint32(b.end), Rows: uint32(n)}
	reply, err := m.append(ctx, r, q, &stagedRows{bytes, fill}, want)
	return b.outcome(reply, err)
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
	c := m.client
	k := c.calls.Get(ctx, c.opt.Timeouts.Lookup)
	defer c.calls.Put(k)
	k.Op = wire.OpAccept
	q := &wire.AcceptRequest{Profile: r.profile, Rank: uint32(m.binding.Rank), Buffer: id, Tokens: uint32(n)}
	body, err := r.a.Do(ctx, k, r.tenant, q, nil)
	if err != nil {
		return b.outcome(nil, err)
	}
	want := b.state(id)
	want.Accepted += uint32(n)
	want.End = want.Accepted
	return b.outcome(bufferReply(r.a, wire.OpAccept, body, want))
}

// FlushDue reports whether the accepted rows of a buffer take as much memory as the recurrent
// states do. From then on, a Replay with Flush frees memory, but earlier tokens can no longer be
// replayed.
func (m *Model) FlushDue(b *Buffer) bool {
	return b.accepted-b.begin >= max(1, m.profile.RowBytes().Smaller())
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
	c := m.client
	k := c.calls.Get(ctx, c.opt.Timeouts.Transfer)
	defer c.calls.Put(k)
	k.Op = wire.OpReplay
	k.Late.Cancel = true
	q.Profile, q.Rank = r.profile, uint32(m.binding.Rank)
	var err error
	if q.Into, err = into(k, r.a, to); err != nil {
		return nil, err
	}
	body, err := r.a.Do(ctx, k, r.tenant, q, nil)
	if err != nil {
		to.spoil(err)
		failed(err)
		return nil, err
	}
	var reply wire.ComposeReply
	if err := r.a.Decode(wire.OpReplay, &reply, body); err != nil {
		return nil, err
	}
	return r.slot(wire.OpReplay, &wire.RotateReply{Lease: reply.Lease, Off: reply.Off, Bytes: reply.Bytes}, to, false)
}

// stagedRows describes rows in staging: their size in bytes, and fill, which writes them.
type stagedRows struct {
	bytes int64
	fill  func([]byte)
}

// append sends an append request with the given rows; if rows is nil, the request has no rows.
// want is the state that the buffer must have afterwards.
func (m *Model) append(ctx context.Context, r *registration, q *wire.AppendRequest, rows *stagedRows, want wire.AppendReply) (*wire.AppendReply, error) {
	c, a := m.client, r.a
	k := c.calls.Get(ctx, c.opt.Timeouts.Transfer)
	defer c.calls.Put(k)
	k.Op = wire.OpAppend
	k.Late.Cancel, k.Late.GiveBack = true, q.Buffer == 0
	q.Profile, q.Rank = r.profile, uint32(m.binding.Rank)
	if rows != nil {
		e, err := a.Staging.Alloc(ctx, rows.bytes, k.Deadline)
		if err != nil {
			return nil, fmt.Errorf("append: rows: %w", err)
		}
		k.Late.Staged = []gpuipc.Extent{e}
		rows.fill(a.Staging.Bytes(e))
		q.StagingOff = uint64(e.Off)
	}
	body, err := a.Do(ctx, k, r.tenant, q, nil)
	a.ReturnStaging(k)
	if err != nil {
		return nil, err
	}
	return bufferReply(a, wire.OpAppend, body, want)
}

// bufferReply decodes the buffer's state after a request. The state follows from the request, so
// bufferReply refuses a reply that differs from the parameter want. want.Buffer is 0 for a new
// buffer, whose id the daemon chooses.
func bufferReply(a *link.Attachment, op wire.Op, body []byte, want wire.AppendReply) (*wire.AppendReply, error) {
	reply := new(wire.AppendReply)
	if err := a.Decode(op, reply, body); err != nil {
		return nil, err
	}
	if want.Buffer == 0 {
		want.Buffer = reply.Buffer
	}
	if reply.Buffer == 0 || *reply != want || reply.End > maxInt32 {
		return nil, a.Malformed("%s: buffer %d of [%d, %d, %d), want buffer %d of [%d, %d, %d)",
			op, reply.Buffer, reply.Begin, reply.Accepted, reply.End, want.Buffer, want.Begin, want.Accepted, want.End)
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
