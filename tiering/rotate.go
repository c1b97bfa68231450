package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// RotateBytes is the size of Dest.Out (0 when rows go to engine memory) and the
// number of segment rows, from the plan's shape alone.
func (s *Store) RotateBytes(q *RotateQuery) (bytes int64, rows int, err error) {
	p, err := s.profile(q.Profile)
	if err != nil {
		return 0, 0, err
	}
	if _, err := p.Attention(q.Layer); err != nil {
		return 0, 0, err
	}
	if err := q.Plan.check(); err != nil {
		return 0, 0, err
	}
	rows, _ = q.Plan.shape()
	if q.Dest.Memory == nil {
		bytes = p.RowsParts(q.Layer, rows).Bytes
	}
	return bytes, rows, nil
}

// Rotate copies keys and values of a plan's segments to their destination and
// turns the keys to their positions on the way.
func (c *Session) Rotate(ctx context.Context, q *RotateQuery) (err error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return err
	}
	layers, err := sc.profile.Attention(q.Layer)
	if err != nil {
		return err
	}
	bytes, rows, err := s.RotateBytes(q)
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	if have := q.Dest.Out.Len(); have < bytes {
		return fmt.Errorf("rotate: %d bytes for an answer of %d: %w", have, bytes, tier.ErrInvalid)
	}
	if q.From.Kind > FromState {
		return fmt.Errorf("rotate: plan from kind %d: %w", q.From.Kind, tier.ErrInvalid)
	}
	h, err := c.hold(sc, q.From, &q.Plan, q.Dest.region())
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	defer s.drop(h, h.counter(&s.counters.Rotated, &s.counters.HBM.Rotated), &err)

	w := &placer{launches: &launches{store: s, above: h.above}, heldPlan: h, turns: turns{profile: sc.profile}, out: q.Dest.Out}
	if q.Dest.Memory == nil {
		w.layout = sc.profile.RowsParts(q.Layer, rows)
	} else if w.memory, err = h.bind(&q.Dest); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	began := s.cfg.Now()
	if err := w.layers(ctx, layers); err != nil {
		return err
	}
	if err := w.run(ctx); err != nil {
		return err
	}
	if q.Layer == profile.AllLayers && !h.above {
		h.rotated(s.cfg.Now().Sub(began))
	}
	return nil
}

// placer makes the device jobs that put a plan's rows where they belong.
type placer struct {
	*heldPlan
	*launches
	turns  turns
	out    gpuipc.Ref
	layout *plan.PartMap // of out, when rows go there
	memory *boundMemory  // else where they go
}

func (w *placer) layers(ctx context.Context, layers []int) error {
	for _, layer := range layers {
		if err := w.layer(ctx, layer); err != nil {
			return deviceError(fmt.Sprintf("rotate layer %d", layer), err)
		}
	}
	return nil
}

func (w *placer) layer(ctx context.Context, layer int) error {
	if w.memory != nil {
		if err := w.chainRows(ctx, layer); err != nil {
			return err
		}
	}
	row := 0
	for i := range w.spans {
		sp := &w.spans[i]
		if sp.object == nil {
			continue
		}
		keys := w.job(&sp.heldNode, layer, profile.PartK, row, sp.Start)
		w.turn(&keys, layer, sp)
		if err := w.rotate(ctx, &keys); err != nil {
			return err
		}
		values := w.job(&sp.heldNode, layer, profile.PartV, row, sp.Start)
		if err := w.rotate(ctx, &values); err != nil {
			return err
		}
		row += sp.Count
	}
	return nil
}

// chainRows copies the rows of the checkpoint's chain, which stand at their
// positions already.
func (w *placer) chainRows(ctx context.Context, layer int) error {
	for i := range w.chain {
		node := &w.chain[i]
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			job := w.job(node, layer, kind, 0, node.object.begin)
			if err := w.rotate(ctx, &job); err != nil {
				return err
			}
		}
	}
	return nil
}

// job copies the rows of one part to packed row number row of the answer, or to
// prompt position at of engine memory.
func (w *placer) job(n *heldNode, layer int, kind profile.PartKind, row, at int) gpuipc.RotateJob {
	src, part := w.store.part(n, w.rank, layer, kind)
	job := gpuipc.RotateJob{
		Rows: part.Shape[0], Heads: part.Shape[1], Dim: part.Shape[2], Type: gpuipc.DType(part.DType), Src: src,
	}
	if w.memory != nil {
		job.Dst = w.memory.scatter(layer, kind, at)
		return job
	}
	to, _ := w.layout.Part(layer, kind)
	rowBytes := part.Len / int64(part.Shape[0])
	job.Dst.Rows = w.out.Slice(to.Off+int64(row)*rowBytes, part.Len)
	return job
}

// turn says how a segment's keys come to their positions: those kept as of the
// whole segment's token 0 by one turn, those kept unrotated row by row.
func (w *placer) turn(job *gpuipc.RotateJob, layer int, sp *heldSpan) {
	rope := w.profile.rope[layer]
	if rope < 0 {
		return
	}
	if w.profile.Layer(layer).Attention.Keys == profile.Unrotated {
		spec := &w.profile.turns[rope]
		job.PerRow = &gpuipc.RowRotation{
			Dims: spec.dims, Interleaved: spec.interleaved, Position: sp.Start, InvFreq: spec.invFreq,
		}
		return
	}
	job.Turn = w.turns.by(layer, sp.turn)
}
