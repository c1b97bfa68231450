package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxRows bounds a buffer; rows of more tokens are dearer than states for any model
// there is.
const maxRows = 1 << 16

// RowsBytes is the size of so many rows, as Append takes them.
func (s *Store) RowsBytes(id tier.ProfileID, rows int) (int64, error) {
	p, err := s.profile(id)
	if err != nil {
		return 0, err
	}
	if rows < 0 || rows > maxRows {
		return 0, fmt.Errorf("%d rows, the most is %d: %w", rows, maxRows, tier.ErrInvalid)
	}
	return p.BufferParts(rows).Bytes, nil
}

// Append copies rows behind the last one of a buffer, as drafts. Rows beyond the
// capacity are ErrFull, and so are rows for which memory is missing; ErrQuota as
// for segments. After an error a buffer holds what it held before.
func (c *Session) Append(ctx context.Context, q *AppendQuery) (BufferState, error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return BufferState{}, err
	}
	if err := q.check(sc.profile); err != nil {
		return BufferState{}, fmt.Errorf("append: %w", err)
	}
	var b *buffer
	if q.Buffer == 0 {
		b, err = c.openBuffer(q, sc)
	} else {
		b, err = c.appendTo(q, &sc)
	}
	if err != nil {
		return BufferState{}, fmt.Errorf("append: %w", err)
	}
	if q.Buffer == 0 && q.Base.Kind == FromState {
		err = s.copyBase(ctx, b, q.Base.State)
	}
	if err == nil {
		err = s.copyRows(ctx, b, q)
	}
	return c.appended(b, q, err)
}

func (q *AppendQuery) check(p *profileState) error {
	least := 1
	if q.Buffer == 0 {
		least = 0
	}
	if q.Rows < least || q.Rows > maxRows {
		return fmt.Errorf("%d rows, want %d to %d: %w", q.Rows, least, maxRows, tier.ErrInvalid)
	}
	l := p.BufferParts(q.Rows)
	switch {
	case q.Begin < 0 || q.Begin > profile.MaxTokens-q.Rows:
		return fmt.Errorf("rows of tokens [%d, +%d): %w", q.Begin, q.Rows, tier.ErrInvalid)
	case len(p.LinearLayers()) == 0:
		return fmt.Errorf("profile %d has no linear layers: %w", p.id, tier.ErrInvalid)
	case q.Src.Len() != l.Bytes:
		return fmt.Errorf("%d rows in %d bytes, want %d: %w", q.Rows, q.Src.Len(), l.Bytes, tier.ErrInvalid)
	case q.Buffer != 0 && (q.Base.Kind != FromZero || q.Capacity != 0):
		return fmt.Errorf("base and capacity of a buffer that is open: %w", tier.ErrInvalid)
	case q.Buffer != 0:
		return nil
	case q.Capacity < max(q.Rows, 1) || q.Capacity > maxRows:
		return fmt.Errorf("%d rows in a buffer for %d, the most is %d: %w", q.Rows, q.Capacity, maxRows, tier.ErrInvalid)
	case q.Base.Kind > FromState || q.Base.Kind == FromZero && q.Begin != 0:
		return fmt.Errorf("base of kind %d before token %d: %w", q.Base.Kind, q.Begin, tier.ErrInvalid)
	case q.Base.Kind == FromState && q.Base.State.Len() != p.CheckpointParts(0).Bytes:
		return fmt.Errorf("base of %d bytes, want %d: %w", q.Base.State.Len(), p.CheckpointParts(0).Bytes, tier.ErrInvalid)
	}
	return nil
}

// appendTo begins to add to a buffer.
func (c *Session) appendTo(q *AppendQuery, sc *planScope) (*buffer, error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := c.bufferLocked(q.Buffer, sc)
	switch {
	case err != nil:
		return nil, err
	case b.appending || b.flushing:
		return nil, b.busy()
	case q.Begin != b.end:
		return nil, fmt.Errorf("buffer %d ends at token %d, the rows begin at %d: %w", b.id, b.end, q.Begin, tier.ErrInvalid)
	case b.end+q.Rows-b.begin > b.capacity:
		return nil, fmt.Errorf("buffer %d: %d rows beside %d, the most is %d: %w", b.id, q.Rows, b.end-b.begin, b.capacity, tier.ErrFull)
	}
	b.appending = true
	s.useLocked(b.rows)
	s.running.Add(1)
	return b, nil
}

// appended ends an append. A buffer that was to be opened is known from now on.
func (c *Session) appended(b *buffer, q *AppendQuery, err error) (BufferState, error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	b.appending = false
	if q.Buffer != 0 {
		s.unuseLocked(b.rows)
		if err == nil && b.released {
			err = fmt.Errorf("append: buffer %d: %w", b.id, tier.ErrGone)
		}
	} else {
		if err == nil {
			err = c.openLocked() // not closed in the meantime
		}
		if err != nil {
			c.releaseBufferLocked(b)
		} else {
			c.buffers[b.id] = b
			s.counters.Buffers++
			s.counters.BuffersOpened++
		}
	}
	s.running.Done()
	if err != nil {
		return BufferState{}, err
	}
	b.end += q.Rows
	s.counters.RowsAppended += uint64(q.Rows)
	return b.state(), nil
}

// copyBase gives a new buffer states of its own.
func (s *Store) copyBase(ctx context.Context, b *buffer, from gpuipc.Ref) error {
	s.mu.Lock()
	base, err := s.claimLocked(b.scope, from.Len(), b.above)
	b.base = base
	s.mu.Unlock()
	s.launch()
	if err != nil {
		return fmt.Errorf("append: base: %w", err)
	}
	return s.copyOn(ctx, b.above, s.shareOf(base, 0), from)
}

// copyBytes copies without anybody wanting the digests.
func (s *Store) copyBytes(ctx context.Context, to, from gpuipc.Ref) error {
	return s.copyOn(ctx, false, to, from)
}

// copyOn is copyBytes in memory or in HBM.
func (s *Store) copyOn(ctx context.Context, above bool, to, from gpuipc.Ref) error {
	digests := make([]uint64, gpuipc.Chunks(from.Len()))
	return s.deviceFailed(above, "copy states", s.device(above).CopyDigests(ctx, to, from, digests))
}

// copyRows writes rows behind the last one. They count once all are there.
func (s *Store) copyRows(ctx context.Context, b *buffer, q *AppendQuery) error {
	if q.Rows == 0 {
		return nil
	}
	from := b.scope.profile.BufferParts(q.Rows)
	to, done := s.shareOf(b.rows, 0), 0
	for _, r := range b.ring(q.Begin, q.Rows) {
		for i := range b.layout.Parts {
			src := rowsOf(q.Src, &from.Parts[i], run{done, r.n})
			if err := s.moveRows(ctx, b.above, rowsOf(to, &b.layout.Parts[i], r), src, &from.Parts[i], r.n); err != nil {
				return err
			}
		}
		done += r.n
	}
	return nil
}

// moveRows copies n rows of a part.
func (s *Store) moveRows(ctx context.Context, above bool, to, from gpuipc.Ref, part *profile.Part, n int) error {
	job := gpuipc.RotateJob{
		Rows: n, Heads: 1, Dim: part.Shape[1] * part.Shape[2], Type: gpuipc.DType(part.DType), Src: from,
		Dst: gpuipc.Scatter{Rows: to},
	}
	return s.deviceFailed(above, fmt.Sprintf("rows of layer %d", part.Layer), s.device(above).Rotate(ctx, &job))
}
