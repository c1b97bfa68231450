package plan

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ReplayBytes returns the size in bytes of a replay's result. It is also the size of the
// states with which a buffer can be opened.
func (g *Geometry) ReplayBytes() int64 { return g.CheckpointParts(0).Bytes }

// replay is one replay: rows, and the states that they advance, both as they were when it began.
type replay struct {
	geometry *Geometry
	on       *Device
	base     share    // zero value = zero states
	runs     []rowRun // the rows up to the requested token
	n        int      // number of these rows
	out      gpuipc.Ref
	to       *PartMap // layout of out
}

// Replay writes the states and convolution tails after a token to q.Out, laid out by
// profile.CheckpointLayout(0). The token is an accepted token of a buffer, or any token of
// a leased checkpoint of kind Rows. The states are bit-identical to those of decoding
// token by token from the base.
//
// With Flush the result also becomes the buffer's base, in separate memory, and the rows
// before the token are dropped. This happens only when the result is complete, so after an
// error the buffer is unchanged. A leased checkpoint cannot be flushed.
func (s *Session) Replay(ctx context.Context, q *ReplayQuery) error {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return err
	}
	if have, want := q.Out.Len(), g.ReplayBytes(); have < want {
		return fmt.Errorf("replay: %d bytes for an answer of %d: %w", have, want, tier.ErrInvalid)
	}
	s.mu.Lock()
	b := s.mu.buffers[q.Buffer]
	s.mu.Unlock()
	if b != nil {
		err = s.replayBuffer(ctx, q, g)
	} else {
		err = s.replayLease(ctx, q, g)
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

func (s *Session) replayBuffer(ctx context.Context, q *ReplayQuery, g *Geometry) error {
	b, r, err := s.beginReplay(q, g)
	if err != nil {
		return err
	}
	var next *Claimed // the new base
	if q.Flush {
		next, err = s.store.Claim(q.Scope, r.on, r.to.Bytes)
	}
	if err == nil {
		err = s.replay(ctx, q.Scope, r)
	}
	if err == nil && q.Flush {
		err = r.on.Copy(ctx, next.Memory, r.out)
	}
	return s.endReplay(b, q, next, err)
}

// replay runs a replay, counts it and measures its time.
func (s *Session) replay(ctx context.Context, sc Scope, r *replay) error {
	began := s.runner.Now()
	if err := r.run(ctx); err != nil {
		return err
	}
	r.on.replayed.Add(1)
	s.runner.rowsReplayed.Add(uint64(r.n))
	if s.runner.Took != nil && r.on == s.runner.Memory {
		s.runner.Took(sc, Timing{Replayed: r.n, Replay: s.runner.Now().Sub(began)})
	}
	return nil
}

// replayLease replays the rows of a leased checkpoint and of its ancestors of kind Rows.
// It begins at the states of the nearest ancestor that has states.
func (s *Session) replayLease(ctx context.Context, q *ReplayQuery, g *Geometry) error {
	held, err := s.store.Hold(q.Scope, []tier.LeaseID{q.Buffer})
	if err != nil {
		return err
	}
	defer held.Release()
	r := &replay{geometry: g, on: held.On, to: g.CheckpointParts(0)}
	r.out = q.Out.Slice(0, r.to.Bytes)
	begin, err := r.resolve(&held.Sources[0])
	if err != nil {
		return err
	}
	if end := held.Sources[0].End; q.Flush || q.Token < begin || q.Token > end {
		return fmt.Errorf("%v has the states of tokens %d to %d, not %d, and keeps its rows: %w", held.Sources[0].Name, begin, end, q.Token, tier.ErrInvalid)
	}
	r.n = q.Token - begin
	r.runs = cut(r.runs, 0, r.n)
	return s.replay(ctx, q.Scope, r)
}

// resolve finds the rows of a source, and the states before them. It returns the number of
// tokens that these states cover.
func (r *replay) resolve(src *Source) (begin int, err error) {
	if src.Kind != tier.Rows {
		return 0, fmt.Errorf("%v is not kept as rows: %w", src.Name, tier.ErrInvalid)
	}
	chain := append(slices.Clone(src.Ancestors), *src)
	first := len(chain)
	for first > 0 && chain[first-1].Kind == tier.Rows {
		first--
	}
	for i := first; i < len(chain); i++ {
		one := r.geometry.share(&chain[i])
		r.runs = append(r.runs, rowRun{one.ref, one.parts, 0, one.end - one.begin})
	}
	if first > 0 {
		r.base = r.geometry.share(&chain[first-1])
	}
	return chain[first].Begin, nil
}

func (s *Session) beginReplay(q *ReplayQuery, g *Geometry) (*buffer, *replay, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bufferLocked(q.Buffer, q.Scope)
	if err != nil {
		return nil, nil, err
	}
	event := bufferEvent{kind: beginReplay, token: q.Token}
	if q.Flush {
		event.kind = beginFlush
	}
	if _, err := b.happensLocked(event); err != nil {
		return nil, nil, err
	}
	n, to := q.Token-b.state.begin, g.CheckpointParts(0)
	return b, &replay{
		geometry: g, on: b.on, base: b.base.share, runs: b.pages.runs(b.state.begin, n), n: n, out: q.Out.Slice(0, to.Bytes), to: to,
	}, nil
}

// endReplay ends a replay or flush. After a successful flush, the parameter next has the states
// that become the base of the buffer. endReplay frees the memory that is no longer needed.
func (s *Session) endReplay(b *buffer, q *ReplayQuery, next *Claimed, failed error) error {
	event := bufferEvent{kind: endReplay, token: q.Token}
	switch {
	case q.Flush && failed == nil:
		event.kind = endFlush
	case q.Flush:
		event.kind = failFlush
	}
	var unused baseStates
	var empty pages
	if next != nil {
		unused = claimedBase(b.geometry, next)
	}
	s.mu.Lock()
	last, err := b.happensLocked(event)
	if failed != nil {
		err = failed
	}
	if q.Flush && err == nil {
		b.base, unused = unused, b.base
		empty = b.pages.before(q.Token)
	}
	s.mu.Unlock()
	unused.letGo()
	empty.release()
	if last {
		b.free()
	}
	if q.Flush && err == nil {
		s.runner.flushes.Add(1)
	}
	return err
}

// run computes the result, layer by layer.
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

// basePart returns a part of the base, the states before the first row; false if these are
// zero states.
func (r *replay) basePart(layer int, kind profile.PartKind) (gpuipc.Ref, bool) {
	if r.base.parts == nil {
		return gpuipc.Ref{}, false
	}
	ref, _ := r.base.part(layer, kind)
	return ref, true
}

// states advances the states of a layer over the rows, run by run.
func (r *replay) states(ctx context.Context, layer int) error {
	lin := &r.geometry.Layer(layer).Linear
	keys, values := r.geometry.RankHeads(layer)
	state, _ := r.to.Part(layer, profile.PartS)
	job := gpuipc.ReplayJob{
		Heads: values, KeyHeads: keys, DK: lin.KeyDim, DV: lin.ValueDim, PerKey: lin.DecayPerKey(),
		Out: r.out.Slice(state.Off, state.Len),
	}
	job.From, _ = r.basePart(layer, profile.PartS)
	for i := range max(1, len(r.runs)) { // without rows one job copies the base
		if r.n > 0 {
			run := r.runs[i]
			job.Rows = run.n
			job.Decay, job.K, job.U = run.part(layer, profile.PartT), run.part(layer, profile.PartK), run.part(layer, profile.PartV)
		}
		if err := r.on.check(r.on.Replay(ctx, &job), "replay layer %d", layer); err != nil {
			return err
		}
		job.From = job.Out
	}
	return nil
}

// tail writes the last inputs of a layer's convolution. It takes these inputs from the rows. If
// there are fewer rows than inputs, the missing first inputs are the end of the base's tail.
func (r *replay) tail(ctx context.Context, layer int) error {
	part, ok := r.to.Part(layer, profile.PartConv)
	if !ok {
		return nil
	}
	fromRows := min(r.n, part.Shape[0])
	to := rowRun{ref: r.out, parts: r.to, at: part.Shape[0] - fromRows}
	if to.at > 0 {
		if err := r.baseTail(ctx, &part, fromRows, to.at); err != nil {
			return err
		}
	}
	for _, run := range cut(r.runs, r.n-fromRows, fromRows) {
		to.n = run.n
		if err := r.on.moveRows(ctx, to.rows(&part), run.part(layer, profile.PartConv), &part, run.n); err != nil {
			return err
		}
		to.at += run.n
	}
	return nil
}

// baseTail writes the first n inputs of a tail. It copies them from the base's tail, leaving out
// as many leading inputs as the parameter skipped says. The inputs are zeros if the base has no
// tail.
func (r *replay) baseTail(ctx context.Context, part *profile.Part, skipped, n int) error {
	to := rowRun{ref: r.out, n: n}.rows(part)
	base, ok := r.basePart(part.Layer, profile.PartConv)
	if !ok {
		return r.on.check(r.on.Store(ctx, to, make([]byte, to.Len())), "convolution tail of layer %d", part.Layer)
	}
	row := part.Len / int64(part.Shape[0])
	return r.on.moveRows(ctx, to, base.Slice(int64(skipped)*row, int64(n)*row), part, n)
}
