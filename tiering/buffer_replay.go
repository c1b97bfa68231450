package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ReplayBytes is the size of a replay's answer.
func (s *Store) ReplayBytes(id tier.ProfileID) (int64, error) {
	p, err := s.profile(id)
	if err != nil {
		return 0, err
	}
	return p.CheckpointParts(0).Bytes, nil
}

// replay is a buffer as it was when a replay of it began.
type replay struct {
	*Store
	buffer *buffer
	base   heldNode // as the buffer's; no object = zero states
	rows   []run    // before the token
	n      int      // how many
	out    gpuipc.Ref
	layout *plan.PartMap // of out
}

// Replay writes the states and convolution tails behind an accepted token to q.Out,
// as profile.CheckpointLayout(0). The states have the bits of decoding token by
// token from the base. With Flush the base is replaced by them, in memory of its
// own, and the rows before the token are dropped: only once they are whole, so that
// after an error the buffer holds what it held before.
func (c *Session) Replay(ctx context.Context, q *ReplayQuery) (err error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return err
	}
	l := sc.profile.CheckpointParts(0)
	if q.Out.Len() < l.Bytes {
		return fmt.Errorf("replay: %d bytes for an answer of %d: %w", q.Out.Len(), l.Bytes, tier.ErrInvalid)
	}
	r, err := c.beginReplay(q, &sc)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	r.layout, r.out = l, q.Out.Slice(0, l.Bytes)
	var next *object
	defer func() { c.endReplay(r, q, next, &err) }()
	if q.Flush {
		if next, err = s.claimBase(sc, l.Bytes, r.buffer.above); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	for _, layer := range sc.profile.LinearLayers() {
		if err := r.states(ctx, layer); err != nil {
			return err
		}
		if err := r.tail(ctx, layer); err != nil {
			return err
		}
	}
	if q.Flush {
		return s.copyOn(ctx, r.buffer.above, s.shareOf(next, 0), r.out)
	}
	return nil
}

func (s *Store) claimBase(sc planScope, bytes int64, above bool) (*object, error) {
	defer s.launch()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimLocked(sc, bytes, above)
}

func (c *Session) beginReplay(q *ReplayQuery, sc *planScope) (*replay, error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := c.bufferLocked(q.Buffer, sc)
	switch {
	case err != nil:
		return nil, err
	case q.Token < b.begin || q.Token > b.accepted:
		return nil, fmt.Errorf("buffer %d has the states of tokens %d to %d, not %d: %w", b.id, b.begin, b.accepted, q.Token, tier.ErrInvalid)
	case b.flushing || q.Flush && (b.appending || b.replays > 0):
		return nil, fmt.Errorf("buffer %d is in use: %w", b.id, tier.ErrBusy)
	}
	b.replays++
	b.flushing = q.Flush
	s.useLocked(b.rows)
	s.useLocked(b.base)
	s.running.Add(1)
	n := q.Token - b.begin
	r := &replay{Store: s, buffer: b, rows: b.ring(b.begin, n), n: n}
	if o := b.base; o != nil {
		sh := 0 // rows were flushed into it, for one rank
		if o.kind != bufferKind {
			sh = sc.rank
		}
		r.base = heldNode{object: o, layout: o.layout(), extents: o.shares[sh].extents}
	}
	return r, nil
}

// endReplay lets go of what the replay has held, and puts next in the place of the
// base when it came about.
func (c *Session) endReplay(r *replay, q *ReplayQuery, next *object, err *error) {
	s, b := c.store, r.buffer
	s.mu.Lock()
	defer s.mu.Unlock()
	b.replays--
	if q.Flush {
		b.flushing = false
	}
	s.unuseLocked(b.rows)
	s.unuseLocked(r.base.object)
	if *err == nil && b.released {
		*err = fmt.Errorf("replay: buffer %d: %w", b.id, tier.ErrGone)
	}
	switch {
	case *err == nil && q.Flush:
		s.unuseLocked(b.base)
		b.base = next
		b.first, b.begin = (b.first+r.n)%b.capacity, q.Token
		s.counters.BufferFlushes++
	case next != nil:
		s.unuseLocked(next)
	}
	if *err == nil {
		if b.above {
			s.counters.HBM.Replayed++
		} else {
			s.counters.Replayed++
		}
		s.counters.RowsReplayed += uint64(r.n)
	}
	s.running.Done()
}

// basePart names a part of the states before the first row; false for zero states.
func (r *replay) basePart(layer int, kind profile.PartKind) (gpuipc.Ref, bool) {
	if r.base.object == nil {
		return gpuipc.Ref{}, false
	}
	ref, _ := r.part(&r.base, r.buffer.scope.rank, layer, kind)
	return ref, true
}

// states moves the states of a layer over the rows, in at most two runs.
func (r *replay) states(ctx context.Context, layer int) error {
	b := r.buffer
	lin := &b.scope.profile.Layer(layer).Linear
	keys, values := b.scope.profile.RankHeads(layer)
	state, _ := r.layout.Part(layer, profile.PartS)
	job := gpuipc.ReplayJob{
		Heads: values, KeyHeads: keys, DK: lin.KeyDim, DV: lin.ValueDim, PerKey: lin.DecayPerKey(),
		Out: r.out.Slice(state.Off, state.Len),
	}
	job.From, _ = r.basePart(layer, profile.PartS)
	rows := r.shareOf(b.rows, 0)
	for i := range max(1, len(r.rows)) { // without rows once, to copy
		if r.n > 0 {
			job.Rows = r.rows[i].n
			job.Decay = r.rowsOf(rows, layer, profile.PartT, r.rows[i])
			job.K = r.rowsOf(rows, layer, profile.PartK, r.rows[i])
			job.U = r.rowsOf(rows, layer, profile.PartV, r.rows[i])
		}
		if err := r.device(b.above).Replay(ctx, &job); err != nil {
			return r.deviceFailed(b.above, fmt.Sprintf("replay layer %d", layer), err)
		}
		job.From = job.Out
	}
	return nil
}

func (r *replay) rowsOf(rows gpuipc.Ref, layer int, kind profile.PartKind, places run) gpuipc.Ref {
	part, _ := r.buffer.layout.Part(layer, kind)
	return rowsOf(rows, &part, places)
}

// tail writes the last inputs of a layer's convolution: those of the rows, and
// where these are too few, the end of the base's tail before them.
func (r *replay) tail(ctx context.Context, layer int) error {
	part, ok := r.layout.Part(layer, profile.PartConv)
	if !ok {
		return nil
	}
	b, want := r.buffer, part.Shape[0]
	inputs, _ := b.layout.Part(layer, profile.PartConv)
	fromRows := min(r.n, want)
	kept := want - fromRows
	if kept > 0 {
		to := rowsOf(r.out, &part, run{0, kept})
		base, ok := r.basePart(layer, profile.PartConv)
		if !ok {
			if err := r.device(b.above).Store(ctx, to, make([]byte, to.Len())); err != nil {
				return r.deviceFailed(b.above, fmt.Sprintf("convolution tail of layer %d", layer), err)
			}
		} else {
			row := part.Len / int64(want)
			if err := r.moveRows(ctx, b.above, to, base.Slice(int64(fromRows)*row, int64(kept)*row), &part, kept); err != nil {
				return err
			}
		}
	}
	at := kept
	for _, places := range b.ring(b.begin+r.n-fromRows, fromRows) {
		to := rowsOf(r.out, &part, run{at, places.n})
		if err := r.moveRows(ctx, b.above, to, rowsOf(r.shareOf(b.rows, 0), &inputs, places), &part, places.n); err != nil {
			return err
		}
		at += places.n
	}
	return nil
}
