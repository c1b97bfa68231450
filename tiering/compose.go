package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// StateBytes is the size of From.State for a layer or profile.AllLayers.
func (s *Store) StateBytes(id tier.ProfileID, layer int) (int64, error) {
	return s.layerBytes(id, layer, (*plan.Geometry).StateParts)
}

// InputBytes is the size of a recomputed span's Input for a layer or profile.AllLayers.
func (s *Store) InputBytes(id tier.ProfileID, layer int) (int64, error) {
	return s.layerBytes(id, layer, (*plan.Geometry).SeamParts)
}

func (s *Store) layerBytes(id tier.ProfileID, layer int, of func(*plan.Geometry, int) *plan.PartMap) (int64, error) {
	p, err := s.profile(id)
	if err != nil {
		return 0, err
	}
	if _, err := p.Linear(layer); err != nil {
		return 0, err
	}
	return of(p.Geometry, layer).Bytes, nil
}

// ComposeBytes is the size of Out, from the plan's shape alone: leases are not
// looked up.
func (s *Store) ComposeBytes(q *ComposeQuery) (int64, error) {
	p, err := s.profile(q.Profile)
	if err != nil {
		return 0, err
	}
	if _, err := p.Linear(q.Layer); err != nil {
		return 0, err
	}
	if err := q.Plan.check(); err != nil {
		return 0, err
	}
	_, seams := q.Plan.shape()
	states, err := p.StatesParts(q.Layer, seams)
	if err != nil {
		return 0, err
	}
	return states.Bytes(), nil
}

// Compose moves a running state over a plan and writes q.Out. The parts of
// segments and seams are read where they lie; nothing is copied first.
func (c *Session) Compose(ctx context.Context, q *ComposeQuery) (err error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return err
	}
	layers, err := sc.profile.Linear(q.Layer)
	if err != nil {
		return err
	}
	_, seams := q.Plan.shape()
	states, err := sc.profile.StatesParts(q.Layer, seams)
	if err == nil {
		err = q.checkInputs(sc.profile, states)
	}
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	h, err := c.hold(sc, q.From, &q.Plan, q.Out.Region)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	defer s.drop(h, h.counter(&s.counters.Composed, &s.counters.HBM.Composed), &err)

	w := &composer{
		launches: &launches{store: s, above: h.above}, heldPlan: h, from: q.From, turns: turns{profile: sc.profile},
		state: sc.profile.StateParts(q.Layer),
		seam:  sc.profile.SeamParts(q.Layer),
	}
	began := s.cfg.Now()
	for i, layer := range layers {
		before := func(seam int) gpuipc.Ref { return q.Out.Slice(states.At(i, seam)) }
		if err := w.layer(ctx, layer, before, before(h.seams)); err != nil {
			return err
		}
	}
	if err := w.run(ctx); err != nil {
		return err
	}
	if q.Layer == profile.AllLayers && !h.above {
		h.composed(s.cfg.Now().Sub(began))
	}
	return nil
}

func (s *Store) planScope(p tier.ProfileID, t tier.TenantID, rank int) (planScope, error) {
	ps, tn, err := s.scope(p, t, rank)
	return planScope{ps, tn, rank}, err
}

// checkInputs checks everything about a compose that needs no lease.
func (q *ComposeQuery) checkInputs(p *profileState, states plan.States) error {
	if err := q.Plan.check(); err != nil {
		return err
	}
	if err := checkFrom(q.From, &q.Plan); err != nil {
		return err
	}
	want := p.SeamParts(q.Layer).Bytes
	_, seams := q.Plan.shape()
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
	if have, want := q.Out.Len(), states.Bytes(); have < want {
		return fmt.Errorf("%d bytes for an answer of %d: %w", have, want, tier.ErrInvalid)
	}
	if q.From.Kind != FromState {
		return nil
	}
	if have, want := q.From.State.Len(), p.StateParts(q.Layer).Bytes; have != want {
		return fmt.Errorf("state of %d bytes, want %d: %w", have, want, tier.ErrInvalid)
	}
	// Layer by layer in place is fine; any other overlap would have one layer's
	// answer overwrite what the next one begins from.
	if overlap(q.From.State, q.Out) && (seams > 0 || !q.From.State.Equal(q.Out.Slice(0, q.From.State.Len()))) {
		return fmt.Errorf("the answer overlaps the state it begins from: %w", tier.ErrInvalid)
	}
	return nil
}

// checkFrom refuses a state that cannot be the one before the plan's first
// token.
func checkFrom(from From, pl *Plan) error {
	switch {
	case from.Kind > FromState:
		return fmt.Errorf("plan from kind %d: %w", from.Kind, tier.ErrInvalid)
	case from.Kind == FromZero && pl.Begin != 0:
		return fmt.Errorf("plan from zero begins at %d: %w", pl.Begin, tier.ErrInvalid)
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

// composer makes one device job per layer of a plan.
type composer struct {
	*heldPlan
	*launches
	from  From
	turns turns
	state *plan.PartMap // of From.State
	seam  *plan.PartMap // of Input
	steps []gpuipc.ComposeStep
}

// layer composes one layer. before names where the state before each recomputed
// span goes; nil = not wanted.
func (w *composer) layer(ctx context.Context, layer int, before func(seam int) gpuipc.Ref, out gpuipc.Ref) error {
	lin := &w.profile.Layer(layer).Linear
	_, heads := w.profile.RankHeads(layer)
	w.steps = w.steps[:0]
	if w.launches.above {
		w.steps = nil // the job keeps them
	}
	seam := 0
	for i := range w.spans {
		sp := &w.spans[i]
		if sp.object != nil {
			w.steps = append(w.steps, w.segmentStep(sp, layer))
			continue
		}
		step := w.seamStep(sp, layer)
		if before != nil {
			step.Before = before(seam)
			w.steps = append(w.steps, step)
		}
		seam++
	}
	job := gpuipc.ComposeJob{
		Transition: gpuipc.Transition(lin.Transition()), Heads: heads, DK: lin.KeyDim, DV: lin.ValueDim,
		From: w.begin(layer), Steps: w.steps, Out: out,
	}
	return w.compose(ctx, layer, &job)
}

// begin is the state before the plan's first token; absent = zero.
func (w *composer) begin(layer int) gpuipc.Ref {
	switch w.from.Kind {
	case FromCheckpoint:
		ref, _ := w.store.part(&w.chain[len(w.chain)-1], w.rank, layer, profile.PartS)
		return ref
	case FromState:
		part, _ := w.state.Part(layer, profile.PartS)
		return w.from.State.Slice(part.Off, part.Len)
	}
	return gpuipc.Ref{}
}

// segmentStep is a segment's (T, S). S of a layer with rope inside stands at
// positions local to the whole segment and is turned to its place (HYPIC Eq. 7).
func (w *composer) segmentStep(sp *heldSpan, layer int) gpuipc.ComposeStep {
	t, tPart := w.store.part(&sp.heldNode, w.rank, layer, profile.PartT)
	s, sPart := w.store.part(&sp.heldNode, w.rank, layer, profile.PartS)
	return gpuipc.ComposeStep{
		T: t, TType: gpuipc.DType(tPart.DType), S: s, SType: gpuipc.DType(sPart.DType),
		Rotation: w.turns.by(layer, sp.turn),
	}
}

// seamStep is a recomputed span's (T, S), which the engine computed at the true
// positions, so that it is not turned. Without input the step changes nothing.
func (w *composer) seamStep(sp *heldSpan, layer int) gpuipc.ComposeStep {
	if sp.Input.Absent() {
		return gpuipc.ComposeStep{}
	}
	t, _ := w.seam.Part(layer, profile.PartT)
	s, _ := w.seam.Part(layer, profile.PartS)
	return gpuipc.ComposeStep{
		T: sp.Input.Slice(t.Off, t.Len), TType: gpuipc.DType(t.DType),
		S: sp.Input.Slice(s.Off, s.Len), SType: gpuipc.DType(s.DType),
	}
}
