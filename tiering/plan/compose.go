package plan

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// StateBytes returns the size in bytes of From.State for a layer or profile.AllLayers.
func (g *Geometry) StateBytes(layer int) (int64, error) {
	if _, err := g.linear(layer); err != nil {
		return 0, err
	}
	return g.stateParts(layer).Bytes, nil
}

// InputBytes returns the size in bytes of a recomputed span's Input for a layer or
// profile.AllLayers.
func (g *Geometry) InputBytes(layer int) (int64, error) {
	if _, err := g.linear(layer); err != nil {
		return 0, err
	}
	return g.seamParts(layer).Bytes, nil
}

// ComposeBytes returns the size in bytes of ComposeQuery.Out, from the plan's shape alone. It
// looks up no leases.
func (g *Geometry) ComposeBytes(q *ComposeQuery) (int64, error) {
	if _, err := g.linear(q.Layer); err != nil {
		return 0, err
	}
	if err := q.Plan.check(); err != nil {
		return 0, err
	}
	_, seams := q.Plan.shape()
	out, err := g.statesBefore(q.Layer, seams)
	if err != nil {
		return 0, err
	}
	return out.bytes(), nil
}

// Compose advances a running state over a plan and writes q.Out. The parts of segments
// and seams are read in place; nothing is copied first.
func (s *Session) Compose(ctx context.Context, q *ComposeQuery) (err error) {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return err
	}
	layers, err := g.linear(q.Layer)
	if err != nil {
		return err
	}
	_, seams := q.Plan.shape()
	out, err := g.statesBefore(q.Layer, seams)
	if err == nil {
		err = q.check(g, out)
	}
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	r, err := s.begin(q.Scope, g, q.From, &q.Plan, q.Out.Region)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	defer func() { r.end(&r.on.composed, err) }()

	c := &composer{run: r, from: q.From, state: g.stateParts(q.Layer), seam: g.seamParts(q.Layer)}
	for i, layer := range layers {
		before := func(seam int) gpuipc.Ref { return q.Out.Slice(out.at(i, seam)) }
		if err := c.layer(ctx, layer, before, before(seams)); err != nil {
			return err
		}
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	if q.Layer == profile.AllLayers {
		r.timing.Compose = r.runner.Now().Sub(r.began)
	}
	return nil
}

// check checks everything about the query that needs no lease.
func (q *ComposeQuery) check(g *Geometry, out states) error {
	if err := q.Plan.check(); err != nil {
		return err
	}
	if err := q.From.check(&q.Plan); err != nil {
		return err
	}
	if err := q.checkInputs(g.seamParts(q.Layer).Bytes); err != nil {
		return err
	}
	if err := holds(q.Out, out.bytes()); err != nil {
		return err
	}
	if q.From.Kind != FromState {
		return nil
	}
	if have, want := q.From.State.Len(), out.one.Bytes; have != want {
		return fmt.Errorf("state of %d bytes, want %d: %w", have, want, tier.ErrInvalid)
	}
	// A layer may advance its state in place, one layer after another. With any other
	// overlap, the result of one layer would overwrite the input of the next.
	if overlap(q.From.State, q.Out) && (out.times > 1 || !q.From.State.Equal(q.Out.Slice(0, q.From.State.Len()))) {
		return fmt.Errorf("the answer overlaps the state it begins from: %w", tier.ErrInvalid)
	}
	return nil
}

// holds checks that a result of a number of bytes fits into out.
func holds(out gpuipc.Ref, bytes int64) error {
	if have := out.Len(); have < bytes {
		return fmt.Errorf("%d bytes for an answer of %d: %w", have, bytes, tier.ErrInvalid)
	}
	return nil
}

// checkInputs checks that each recomputed span except the last has an input of the wanted length.
func (q *ComposeQuery) checkInputs(want int64) error {
	for i := range q.Plan.Spans {
		sp := &q.Plan.Spans[i]
		switch {
		case sp.Kind == SpanSegment && !sp.Input.Absent():
			return fmt.Errorf("span %d is a segment with an input: %w", i, tier.ErrInvalid)
		case sp.Kind == SpanRecompute && sp.Input.Absent() && i != len(q.Plan.Spans)-1:
			return fmt.Errorf("span %d of %d has no input: %w", i, len(q.Plan.Spans), tier.ErrInvalid)
		case !sp.Input.Absent() && sp.Input.Len() != want:
			return fmt.Errorf("span %d: input of %d bytes, want %d: %w", i, sp.Input.Len(), want, tier.ErrInvalid)
		}
	}
	return nil
}

func overlap(a, b gpuipc.Ref) bool {
	if a.Region != b.Region {
		return false
	}
	for _, x := range a.Extents {
		for _, y := range b.Extents {
			if x.Off < y.Off+y.Len && y.Off < x.Off+x.Len {
				return true
			}
		}
	}
	return false
}

// composer creates one compose job per linear layer of a plan.
type composer struct {
	*run
	from  From
	state *PartMap // layout of From.State
	seam  *PartMap // layout of Input
	steps []gpuipc.ComposeStep
}

// layer composes one layer into out. The function before returns the place for the state before a
// recomputed span. If it is nil, these states are not wanted, and recomputed spans, which then
// have no input, are skipped.
func (c *composer) layer(ctx context.Context, layer int, before func(seam int) gpuipc.Ref, out gpuipc.Ref) error {
	lin := &c.geometry.Layer(layer).Linear
	_, heads := c.geometry.RankHeads(layer)
	c.steps = c.steps[:0]
	if c.on.Batch != nil {
		c.steps = nil // owned by the job
	}
	seam := 0
	for i := range c.spans {
		sp := &c.spans[i]
		if sp.isSegment() {
			c.steps = append(c.steps, c.segmentStep(sp, layer))
			continue
		}
		step := c.seamStep(sp, layer)
		if before != nil {
			step.Before = before(seam)
			c.steps = append(c.steps, step)
		}
		seam++
	}
	return c.compose(ctx, layer, &gpuipc.ComposeJob{
		Transition: gpuipc.Transition(lin.Transition()), Heads: heads, DK: lin.KeyDim, DV: lin.ValueDim,
		From: c.first(layer), Steps: c.steps, Out: out,
	})
}

// first returns the state before the plan's first token; an absent Ref stands for zero.
func (c *composer) first(layer int) gpuipc.Ref {
	switch c.from.Kind {
	case FromCheckpoint:
		ref, _ := c.chain[len(c.chain)-1].part(layer, profile.PartS)
		return ref
	case FromState:
		part, _ := c.state.Part(layer, profile.PartS)
		return c.from.State.Slice(part.Off, part.Len)
	}
	return gpuipc.Ref{}
}

// segmentStep returns the step that applies a segment's T and S. In a layer that applies
// rope to its states, S is for positions local to the whole segment, so the step rotates
// it to its prompt position (HYPIC Eq. 7).
func (c *composer) segmentStep(sp *heldSpan, layer int) gpuipc.ComposeStep {
	t, tPart := sp.segment.part(layer, profile.PartT)
	s, sPart := sp.segment.part(layer, profile.PartS)
	return gpuipc.ComposeStep{
		T: t, TType: gpuipc.DType(tPart.DType), TPacked: tPart.Packed, S: s, SType: gpuipc.DType(sPart.DType), SPacked: sPart.Packed,
		Rotation: c.rotations.by(layer, sp.origin),
	}
}

// seamStep returns the step that applies a recomputed span's T and S. The engine computed them at
// the true positions, so the step does not rotate. Without an input the step changes nothing.
func (c *composer) seamStep(sp *heldSpan, layer int) gpuipc.ComposeStep {
	if sp.Input.Absent() {
		return gpuipc.ComposeStep{}
	}
	t, _ := c.seam.Part(layer, profile.PartT)
	s, _ := c.seam.Part(layer, profile.PartS)
	return gpuipc.ComposeStep{
		T: sp.Input.Slice(t.Off, t.Len), TType: gpuipc.DType(t.DType),
		S: sp.Input.Slice(s.Off, s.Len), SType: gpuipc.DType(s.DType),
	}
}

// tail copies the convolution tail from which the recomputed tokens continue: the tail of
// the last segment, else the tail of the checkpoint, else zeros.
func (c *composer) tail(ctx context.Context, layer int, out *PartMap, into gpuipc.Ref) error {
	part, ok := out.Part(layer, profile.PartConv)
	if !ok {
		return nil
	}
	dst := into.Slice(part.Off, part.Len)
	last := c.lastShare()
	if last == nil {
		return c.on.check(c.on.Store(ctx, dst, make([]byte, part.Len)), "convolution tail of layer %d", layer)
	}
	src, from := last.part(layer, profile.PartConv)
	return c.rotate(ctx, layer, &gpuipc.RotateJob{
		Rows: from.Shape[0], Heads: 1, Dim: from.Shape[1], Type: gpuipc.DType(from.DType), Src: src,
		Dst: gpuipc.Scatter{Rows: dst},
	})
}

// lastShare returns the segment or checkpoint directly before the tokens that are recomputed at
// the plan's end; nil = none.
func (c *composer) lastShare() (last *share) {
	if n := len(c.chain); n > 0 {
		last = &c.chain[n-1]
	}
	for i := range c.spans {
		if sp := &c.spans[i]; sp.isSegment() {
			last = &sp.segment
		}
	}
	return last
}
