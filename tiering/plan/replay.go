package plan

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ReplayBytes is the size of a replay's answer, and of the states that a buffer can be
// opened over.
func (g *Geometry) ReplayBytes() int64 { return g.CheckpointParts(0).Bytes }

// replay is a buffer as it was when a replay of it began.
type replay struct {
	*buffer
	base  share      // as the buffer's
	spans []ringSpan // of the rows before the token
	n     int        // how many these are
	out   gpuipc.Ref
	to    *PartMap // of out
}

// Replay writes the states and convolution tails behind an accepted token to q.Out,
// as profile.CheckpointLayout(0). The states have the bits of decoding token by
// token from the base. With Flush the base is replaced by them, in memory of its
// own, and the rows before the token are dropped: only once they are whole, so that
// after an error the buffer holds what it held before.
func (s *Session) Replay(ctx context.Context, q *ReplayQuery) error {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return err
	}
	if have, want := q.Out.Len(), g.ReplayBytes(); have < want {
		return fmt.Errorf("replay: %d bytes for an answer of %d: %w", have, want, tier.ErrInvalid)
	}
	r, err := s.beginReplay(q, g)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	var next *Claimed // the base to be
	if q.Flush {
		next, err = s.store.Claim(q.Scope, r.on, r.to.Bytes)
	}
	if err == nil {
		err = r.run(ctx)
	}
	if err == nil && q.Flush {
		err = r.on.Copy(ctx, next.Memory, r.out)
	}
	if err := s.endReplay(r, q, next, err); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

func (s *Session) beginReplay(q *ReplayQuery, g *Geometry) (*replay, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bufferLocked(q.Buffer, q.Scope)
	if err != nil {
		return nil, err
	}
	event := bufferEvent{kind: beginReplay, token: q.Token}
	if q.Flush {
		event.kind = beginFlush
	}
	if _, err := b.happensLocked(event); err != nil {
		return nil, err
	}
	n, to := q.Token-b.state.begin, g.CheckpointParts(0)
	return &replay{buffer: b, base: b.base.share, spans: b.state.ring(b.state.begin, n), n: n, out: q.Out.Slice(0, to.Bytes), to: to}, nil
}

// endReplay puts next in the place of the base, if all went well, and gives back what
// is not wanted any more.
func (s *Session) endReplay(r *replay, q *ReplayQuery, next *Claimed, failed error) error {
	event := bufferEvent{kind: endReplay, token: q.Token}
	switch {
	case q.Flush && failed == nil:
		event.kind = endFlush
	case q.Flush:
		event.kind = failFlush
	}
	var unused baseStates
	if next != nil {
		unused = claimedBase(r.geometry, next)
	}
	b := r.buffer
	s.mu.Lock()
	last, err := b.happensLocked(event)
	if failed != nil {
		err = failed
	}
	if q.Flush && err == nil {
		b.base, unused = unused, b.base
	}
	s.mu.Unlock()
	unused.letGo()
	if last {
		b.free()
	}
	if err != nil {
		return err
	}
	if q.Flush {
		s.runner.flushes.Add(1)
	}
	r.on.replayed.Add(1)
	s.runner.rowsReplayed.Add(uint64(r.n))
	return nil
}

// run writes the answer.
func (r *replay) run(ctx context.Context) error {
	for _, layer := range r.geometry.LinearLayers() {
		if err := r.states(ctx, layer); err != nil {
			return err
		}
		if err := r.tail(ctx, layer); err != nil {
			return err
		}
	}
	return nil
}

// basePart names a part of the states before the first row; false for zero states.
func (r *replay) basePart(layer int, kind profile.PartKind) (gpuipc.Ref, bool) {
	if r.base.parts == nil {
		return gpuipc.Ref{}, false
	}
	ref, _ := r.base.part(layer, kind)
	return ref, true
}

// states moves the states of a layer over the rows, in at most two spans.
func (r *replay) states(ctx context.Context, layer int) error {
	lin := &r.geometry.Layer(layer).Linear
	keys, values := r.geometry.RankHeads(layer)
	state, _ := r.to.Part(layer, profile.PartS)
	job := gpuipc.ReplayJob{
		Heads: values, KeyHeads: keys, DK: lin.KeyDim, DV: lin.ValueDim, PerKey: lin.DecayPerKey(),
		Out: r.out.Slice(state.Off, state.Len),
	}
	job.From, _ = r.basePart(layer, profile.PartS)
	for i := range max(1, len(r.spans)) { // without rows once, to copy
		if r.n > 0 {
			job.Rows = r.spans[i].n
			job.Decay = r.rowsIn(layer, profile.PartT, r.spans[i])
			job.K = r.rowsIn(layer, profile.PartK, r.spans[i])
			job.U = r.rowsIn(layer, profile.PartV, r.spans[i])
		}
		if err := r.on.check(r.on.Replay(ctx, &job), "replay layer %d", layer); err != nil {
			return err
		}
		job.From = job.Out
	}
	return nil
}

// rowsIn names the rows of a part of a layer in places of the ring.
func (b *buffer) rowsIn(layer int, kind profile.PartKind, places ringSpan) gpuipc.Ref {
	part, _ := b.parts.Part(layer, kind)
	return rowsOf(b.rows.Memory, &part, places)
}

// tail writes the last inputs of a layer's convolution: those of the rows, and
// where these are too few, the end of the base's tail before them.
func (r *replay) tail(ctx context.Context, layer int) error {
	part, ok := r.to.Part(layer, profile.PartConv)
	if !ok {
		return nil
	}
	fromRows := min(r.n, part.Shape[0])
	at := part.Shape[0] - fromRows
	if at > 0 {
		if err := r.baseTail(ctx, &part, fromRows, at); err != nil {
			return err
		}
	}
	for _, places := range r.lastRows(fromRows) {
		to := rowsOf(r.out, &part, ringSpan{at, places.n})
		if err := r.on.moveRows(ctx, to, r.rowsIn(layer, profile.PartConv, places), &part, places.n); err != nil {
			return err
		}
		at += places.n
	}
	return nil
}

// baseTail writes the first n inputs of a tail: those of the base's tail from number
// skipped on, or zeros.
func (r *replay) baseTail(ctx context.Context, part *profile.Part, skipped, n int) error {
	to := rowsOf(r.out, part, ringSpan{0, n})
	base, ok := r.basePart(part.Layer, profile.PartConv)
	if !ok {
		return r.on.check(r.on.Store(ctx, to, make([]byte, to.Len())), "convolution tail of layer %d", part.Layer)
	}
	row := part.Len / int64(part.Shape[0])
	return r.on.moveRows(ctx, to, base.Slice(int64(skipped)*row, int64(n)*row), part, n)
}

// lastRows is where the last n of the rows lie.
func (r *replay) lastRows(n int) []ringSpan {
	var out []ringSpan
	skip := r.n - n
	for _, sp := range r.spans {
		cut := min(skip, sp.n)
		skip -= cut
		if sp.n > cut {
			out = append(out, ringSpan{sp.at + cut, sp.n - cut})
		}
	}
	return out
}
