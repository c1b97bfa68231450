package plan

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxRows is the maximum number of rows of a buffer. For any existing model, more rows
// than that take more bytes than the states that they replace.
const maxRows = 1 << 16

// RowsBytes returns the size in bytes of a number of rows in the layout that Append expects.
func (g *Geometry) RowsBytes(rows int) (int64, error) {
	if rows < 0 || rows > maxRows {
		return 0, fmt.Errorf("%d rows, the most is %d: %w", rows, maxRows, tier.ErrInvalid)
	}
	return g.bufferParts(rows).Bytes, nil
}

// Append copies rows to the end of a buffer, as drafts. The buffer allocates pages as it
// grows. The error is ErrFull if the rows exceed the capacity or there is no memory, and
// ErrQuota if they exceed the tenant's quota. After an error the buffer is unchanged.
func (s *Session) Append(ctx context.Context, q *AppendQuery) (BufferState, error) {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return BufferState{}, err
	}
	if err := q.check(g); err != nil {
		return BufferState{}, fmt.Errorf("append: %w", err)
	}
	add := s.appendTo
	if q.Buffer == 0 {
		add = s.open
	}
	got, err := add(ctx, q, g)
	if err != nil {
		return BufferState{}, fmt.Errorf("append: %w", err)
	}
	s.runner.rowsAppended.Add(uint64(q.Rows))
	return got, nil
}

func (q *AppendQuery) check(g *Geometry) error {
	least := 1
	if q.Buffer == 0 {
		least = 0
	}
	if q.Rows < least || q.Rows > maxRows {
		return fmt.Errorf("%d rows, want %d to %d: %w", q.Rows, least, maxRows, tier.ErrInvalid)
	}
	rows, states := g.bufferParts(q.Rows).Bytes, g.ReplayBytes()
	switch {
	case q.Begin < 0 || q.Begin > profile.MaxTokens-q.Rows:
		return fmt.Errorf("rows of tokens [%d, +%d): %w", q.Begin, q.Rows, tier.ErrInvalid)
	case !g.KeepsRows():
		return fmt.Errorf("profile %d has no linear layers, or convolutions beside them: %w", g.id, tier.ErrInvalid)
	case q.Src.Len() != rows:
		return fmt.Errorf("%d rows in %d bytes, want %d: %w", q.Rows, q.Src.Len(), rows, tier.ErrInvalid)
	case q.Buffer != 0 && (q.Base.Kind != FromZero || q.Capacity != 0):
		return fmt.Errorf("base and capacity of a buffer that is open: %w", tier.ErrInvalid)
	case q.Buffer != 0:
		return nil
	case q.Capacity < max(q.Rows, 1) || q.Capacity > maxRows:
		return fmt.Errorf("%d rows in a buffer for %d, the most is %d: %w", q.Rows, q.Capacity, maxRows, tier.ErrInvalid)
	case q.Base.Kind > FromState || q.Base.Kind == FromZero && q.Begin != 0:
		return fmt.Errorf("base of kind %d before token %d: %w", q.Base.Kind, q.Begin, tier.ErrInvalid)
	case q.Base.Kind == FromState && q.Base.State.Len() != states:
		return fmt.Errorf("base of %d bytes, want %d: %w", q.Base.State.Len(), states, tier.ErrInvalid)
	}
	return nil
}

// appendTo adds rows to a buffer of the session.
func (s *Session) appendTo(ctx context.Context, q *AppendQuery, _ *Geometry) (BufferState, error) {
	s.mu.Lock()
	b, err := s.bufferLocked(q.Buffer, q.Scope)
	if err == nil {
		_, err = b.happensLocked(bufferEvent{kind: beginAppend, token: q.Begin, rows: q.Rows})
	}
	lack := 0
	if err == nil {
		lack = b.pages.lack(q.Begin, q.Rows)
	}
	s.mu.Unlock()
	if err != nil {
		return BufferState{}, err
	}
	event := bufferEvent{kind: endAppend, rows: q.Rows}
	more, failed := s.claimPage(q, b, lack)
	if failed == nil {
		s.mu.Lock()
		b.pages = append(b.pages, more...)
		to := b.pages.runs(q.Begin, q.Rows)
		s.mu.Unlock()
		failed = b.copyRows(ctx, q, to)
	}
	var unused pages
	s.mu.Lock()
	if failed != nil {
		event.kind = failAppend
		unused = b.pages.behind(b.state.end)
	}
	last, err := b.happensLocked(event)
	got := b.answer()
	s.mu.Unlock()
	unused.release()
	if last {
		b.free()
	}
	if failed != nil {
		return BufferState{}, failed
	}
	return got, err
}

// claimPage allocates memory for the last n of the rows to be appended, which have no page
// yet. For n = 0 it does nothing.
func (s *Session) claimPage(q *AppendQuery, b *buffer, n int) (pages, error) {
	if n == 0 {
		return nil, nil
	}
	rows := max(n, min((n+pageRows-1)/pageRows*pageRows, b.state.capacity))
	parts := b.geometry.bufferParts(rows)
	memory, err := s.store.Claim(q.Scope, b.on, parts.Bytes)
	if err != nil {
		return nil, err
	}
	return pages{{memory, parts, q.Begin + q.Rows - n, rows}}, nil
}

// open creates a buffer with its first rows. Other calls do not see it until it is complete.
func (s *Session) open(ctx context.Context, q *AppendQuery, g *Geometry) (BufferState, error) {
	s.mu.Lock()
	others := len(s.mu.buffers) + s.mu.opening
	s.mu.opening++
	s.mu.Unlock()
	b, err := s.newBuffer(ctx, q, g, others)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.opening--
	if err != nil {
		return BufferState{}, err
	}
	if s.mu.closed != nil { // closed meanwhile
		defer b.free()
		return BufferState{}, s.mu.closed
	}
	s.mu.buffers[b.id] = b
	s.runner.buffers.Add(1)
	s.runner.buffersOpened.Add(1)
	return b.answer(), nil
}

// newBuffer allocates memory for a buffer and fills it.
func (s *Session) newBuffer(ctx context.Context, q *AppendQuery, g *Geometry, others int) (*buffer, error) {
	if err := s.store.Admit(others); err != nil {
		return nil, err
	}
	b := &buffer{
		id: s.store.NewID(), scope: q.Scope, geometry: g, state: newBufferState(q.Begin, q.Capacity),
		on: s.runner.deviceOf(q.Src.Region),
	}
	if q.Base.Kind == FromState && b.on == s.runner.Memory {
		b.on = s.runner.deviceOf(q.Base.State.Region)
	}
	if q.Base.Kind == FromCheckpoint {
		if err := s.holdBase(b, q); err != nil {
			return nil, err
		}
	}
	var err error
	_ = b.state.transition(bufferEvent{kind: beginAppend, token: q.Begin, rows: q.Rows}) // cannot fail after check
	if q.Base.Kind == FromState {
		err = s.copyBase(ctx, b, q)
	}
	if err == nil {
		b.pages, err = s.claimPage(q, b, q.Rows)
	}
	if err == nil {
		err = b.copyRows(ctx, q, b.pages.runs(q.Begin, q.Rows))
	}
	if err != nil {
		b.free()
		return nil, err
	}
	_ = b.state.transition(bufferEvent{kind: endAppend, rows: q.Rows})
	return b, nil
}

// holdBase makes the states of a leased checkpoint the base of a buffer. It uses them in place.
func (s *Session) holdBase(b *buffer, q *AppendQuery) error {
	held, err := s.store.Hold(q.Scope, []tier.LeaseID{q.Base.Lease})
	if err != nil {
		return err
	}
	src := &held.Sources[0]
	if err := src.checkBase(q.Begin); err != nil {
		held.Release()
		return err
	}
	b.on, b.base = held.On, baseStates{b.geometry.share(src), held.Release}
	return nil
}

// copyBase copies the states of the query into memory of the new buffer.
func (s *Session) copyBase(ctx context.Context, b *buffer, q *AppendQuery) error {
	base, err := s.store.Claim(q.Scope, b.on, q.Base.State.Len())
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	b.base = claimedBase(b.geometry, base)
	return b.on.Copy(ctx, base.Memory, q.Base.State)
}

// copyRows writes rows after the last row of the buffer. The rows become part of the buffer
// only when the append ends.
func (b *buffer) copyRows(ctx context.Context, q *AppendQuery, to []rowRun) error {
	src, done := rowRun{ref: q.Src, parts: b.geometry.bufferParts(q.Rows)}, 0
	for _, r := range to {
		src.at, src.n = done, r.n
		for i := range r.parts.Parts {
			part := &src.parts.Parts[i]
			if err := b.on.moveRows(ctx, r.rows(&r.parts.Parts[i]), src.rows(part), part, r.n); err != nil {
				return err
			}
		}
		done += r.n
	}
	return nil
}
