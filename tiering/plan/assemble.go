package plan

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// AssembleBytes returns the size in bytes of Dest.Out and the number of segment rows, from
// the plan's shape alone. Dest.Out has states and convolution tails even if the rows go
// elsewhere (Dest.Memory).
func (g *Geometry) AssembleBytes(q *AssembleQuery) (bytes int64, rows int, err error) {
	if err := q.Plan.check(); err != nil {
		return 0, 0, err
	}
	rows, _ = q.Plan.shape()
	return q.parts(g, rows).Bytes, rows, nil
}

// parts returns the layout of Dest.Out.
func (q *AssembleQuery) parts(g *Geometry, rows int) *PartMap {
	if q.Dest.Memory != nil {
		rows = 0
	}
	return g.CheckpointParts(rows)
}

// Assemble composes the states of all linear layers, places the rows of all attention layers
// and copies the convolution tails. Only the last span of the plan may be recomputed.
func (s *Session) Assemble(ctx context.Context, q *AssembleQuery) (err error) {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return err
	}
	bytes, rows, err := g.AssembleBytes(q)
	if err == nil {
		err = q.check(bytes)
	}
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	r, err := s.begin(q.Scope, g, q.From, &q.Plan, q.Dest.Out.Region)
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	defer func() { r.end(&r.on.assembled, err) }()

	out := q.parts(g, rows)
	w := &rotator{run: r, out: q.Dest.Out, parts: out}
	if q.Dest.Memory != nil {
		if w.memory, err = r.bind(&q.Dest); err != nil {
			return fmt.Errorf("assemble: %w", err)
		}
	}
	c := &composer{run: r, from: q.From}
	for _, layer := range g.LinearLayers() {
		state, _ := out.Part(layer, profile.PartS)
		if err := c.layer(ctx, layer, nil, q.Dest.Out.Slice(state.Off, state.Len)); err != nil {
			return err
		}
		if err := c.tail(ctx, layer, out, q.Dest.Out); err != nil {
			return err
		}
	}
	for _, layer := range g.ConvLayers() {
		if err := c.tail(ctx, layer, out, q.Dest.Out); err != nil {
			return err
		}
	}
	composed := r.runner.Now()
	for _, layer := range g.AttentionLayers() {
		if err := w.layer(ctx, layer); err != nil {
			return err
		}
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	r.timing.Compose, r.timing.Rotate = composed.Sub(r.began), r.runner.Now().Sub(composed)
	return nil
}

// check checks everything about the query that needs no lease.
func (q *AssembleQuery) check(bytes int64) error {
	if err := holds(q.Dest.Out, bytes); err != nil {
		return err
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
	return q.From.check(&q.Plan)
}
