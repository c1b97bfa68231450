package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// AssembleBytes is the size of Dest.Out and the number of segment rows, from the
// plan's shape alone. Out holds states and convolution tails in any case.
func (s *Store) AssembleBytes(q *AssembleQuery) (bytes int64, rows int, err error) {
	p, err := s.profile(q.Profile)
	if err != nil {
		return 0, 0, err
	}
	if err := q.Plan.check(); err != nil {
		return 0, 0, err
	}
	rows, _ = q.Plan.shape()
	return q.layout(p, rows).Bytes, rows, nil
}

func (q *AssembleQuery) layout(p *profileState, rows int) *plan.PartMap {
	if q.Dest.Memory != nil {
		rows = 0
	}
	return p.CheckpointParts(rows)
}

// Assemble composes the states of all linear layers, places the rows of all
// attention layers and hands over the convolution tails, for a plan that is
// recomputed at its end only.
func (c *Session) Assemble(ctx context.Context, q *AssembleQuery) (err error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return err
	}
	bytes, rows, err := s.AssembleBytes(q)
	if err == nil {
		err = q.check(bytes)
	}
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	h, err := c.hold(sc, q.From, &q.Plan, q.Dest.Out.Region)
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	defer s.drop(h, h.counter(&s.counters.Assembled, &s.counters.HBM.Assembled), &err)

	out := q.layout(sc.profile, rows)
	jobs := &launches{store: s, above: h.above}
	place := &placer{launches: jobs, heldPlan: h, turns: turns{profile: sc.profile}, out: q.Dest.Out, layout: out}
	if q.Dest.Memory != nil {
		if place.memory, err = h.bind(&q.Dest); err != nil {
			return fmt.Errorf("assemble: %w", err)
		}
	}
	move := &composer{launches: jobs, heldPlan: h, from: q.From, turns: turns{profile: sc.profile}}
	began := s.cfg.Now()
	for _, layer := range sc.profile.LinearLayers() {
		state, _ := out.Part(layer, profile.PartS)
		if err := move.layer(ctx, layer, nil, q.Dest.Out.Slice(state.Off, state.Len)); err != nil {
			return err
		}
		if err := move.tail(ctx, layer, out, q.Dest.Out); err != nil {
			return err
		}
	}
	composed := s.cfg.Now()
	if err := place.layers(ctx, sc.profile.AttentionLayers()); err != nil {
		return err
	}
	if h.above {
		return jobs.run(ctx)
	}
	h.composed(composed.Sub(began))
	h.rotated(s.cfg.Now().Sub(composed))
	return nil
}

// check is everything about an assemble that needs no lease.
func (q *AssembleQuery) check(bytes int64) error {
	if have := q.Dest.Out.Len(); have < bytes {
		return fmt.Errorf("%d bytes for an answer of %d: %w", have, bytes, tier.ErrInvalid)
	}
	if q.From.Kind == FromState {
		return fmt.Errorf("from a bare state, whose convolution tails are not known: %w", tier.ErrInvalid)
	}
	for i := range q.Plan.Spans {
		sp := &q.Plan.Spans[i]
		if sp.Kind == SpanRecompute && i != len(q.Plan.Spans)-1 || !sp.Input.Absent() {
			return fmt.Errorf("span %d of %d is recomputed or has an input: %w", i, len(q.Plan.Spans), tier.ErrInvalid)
		}
	}
	return checkFrom(q.From, &q.Plan)
}

// tail copies the convolution tail that the recomputed tokens continue from:
// that of the last segment, of the checkpoint, or zeros.
func (w *composer) tail(ctx context.Context, layer int, out *plan.PartMap, into gpuipc.Ref) error {
	part, ok := out.Part(layer, profile.PartConv)
	if !ok {
		return nil
	}
	dst := into.Slice(part.Off, part.Len)
	var last *heldNode
	if w.base != nil {
		last = &w.chain[len(w.chain)-1]
	}
	for i := range w.spans {
		if n := &w.spans[i].heldNode; n.object != nil {
			last = n
		}
	}
	what := fmt.Sprintf("convolution tail of layer %d", layer)
	if last == nil {
		err := w.store.device(w.launches.above).Store(ctx, dst, make([]byte, part.Len))
		return w.store.deviceFailed(w.launches.above, what, err)
	}
	src, from := w.store.part(last, w.rank, layer, profile.PartConv)
	job := gpuipc.RotateJob{
		Rows: from.Shape[0], Heads: 1, Dim: from.Shape[1], Type: gpuipc.DType(from.DType), Src: src,
		Dst: gpuipc.Scatter{Rows: dst},
	}
	return deviceError(what, w.rotate(ctx, &job))
}
