package plan

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// RotateBytes returns the size in bytes of Dest.Out (0 if rows are written to engine
// memory) and the number of segment rows, from the plan's shape alone.
func (g *Geometry) RotateBytes(q *RotateQuery) (bytes int64, rows int, err error) {
	if _, err := g.attention(q.Layer); err != nil {
		return 0, 0, err
	}
	if err := q.Plan.check(); err != nil {
		return 0, 0, err
	}
	rows, _ = q.Plan.shape()
	if q.Dest.Memory == nil {
		bytes = g.rowsParts(q.Layer, rows).Bytes
	}
	return bytes, rows, nil
}

// Rotate copies the keys and values of a plan's segments to their destination. On the way
// it rotates the keys to their positions.
func (s *Session) Rotate(ctx context.Context, q *RotateQuery) (err error) {
	g, err := s.store.Geometry(q.Scope)
	if err != nil {
		return err
	}
	layers, err := g.attention(q.Layer)
	if err != nil {
		return err
	}
	bytes, rows, err := g.RotateBytes(q)
	if err == nil {
		err = q.check(bytes)
	}
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	r, err := s.begin(q.Scope, g, q.From, &q.Plan, q.Dest.region())
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	defer func() { r.end(&r.on.rotated, err) }()

	w := &rotator{run: r, out: q.Dest.Out}
	if q.Dest.Memory == nil {
		w.parts = g.rowsParts(q.Layer, rows)
	} else if w.memory, err = r.bind(&q.Dest); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	for _, layer := range layers {
		if err := w.layer(ctx, layer); err != nil {
			return err
		}
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	if q.Layer == profile.AllLayers {
		r.timing.Rotate = r.runner.Now().Sub(r.began)
	}
	return nil
}

// check checks everything about the query that needs no lease.
func (q *RotateQuery) check(bytes int64) error {
	if err := holds(q.Dest.Out, bytes); err != nil {
		return err
	}
	if q.From.Kind > FromState {
		return fmt.Errorf("plan from kind %d: %w", q.From.Kind, tier.ErrInvalid)
	}
	return nil
}

// rotator creates the device jobs that copy a plan's rows to their destination.
type rotator struct {
	*run
	out    gpuipc.Ref
	parts  *PartMap     // layout of out, if the rows are packed there; else nil
	memory *boundMemory // the destination, if the rows go to engine memory; else nil
}

func (w *rotator) layer(ctx context.Context, layer int) error {
	if w.memory != nil {
		if err := w.chainRows(ctx, layer); err != nil {
			return err
		}
	}
	row := 0
	for i := range w.spans {
		sp := &w.spans[i]
		if !sp.isSegment() {
			continue
		}
		keys := w.job(&sp.segment, layer, profile.PartK, row, sp.Start)
		w.rotations.rotate(&keys, layer, sp)
		if err := w.rotate(ctx, layer, &keys); err != nil {
			return err
		}
		values := w.job(&sp.segment, layer, profile.PartV, row, sp.Start)
		if err := w.rotate(ctx, layer, &values); err != nil {
			return err
		}
		row += sp.Count
	}
	return nil
}

// chainRows copies the rows of the checkpoint's chain, which are already at their
// positions.
func (w *rotator) chainRows(ctx context.Context, layer int) error {
	for i := range w.chain {
		node := &w.chain[i]
		for _, kind := range [...]profile.PartKind{profile.PartK, profile.PartV} {
			job := w.job(node, layer, kind, 0, node.begin)
			if err := w.rotate(ctx, layer, &job); err != nil {
				return err
			}
		}
	}
	return nil
}

// job returns the job that copies the rows of one part. The first row goes to the row
// numbered row of the packed result, or to the prompt position at in engine memory.
func (w *rotator) job(from *share, layer int, kind profile.PartKind, row, at int) gpuipc.RotateJob {
	src, part := from.part(layer, kind)
	job := gpuipc.RotateJob{
		Rows: part.Shape[0], Heads: part.Shape[1], Dim: part.Shape[2], Type: gpuipc.DType(part.DType), Src: src, SrcPacked: part.Packed,
	}
	if w.memory != nil {
		job.Dst = w.memory.scatter(layer, kind, at)
		return job
	}
	to, _ := w.parts.Part(layer, kind)
	rowBytes := to.Len / int64(to.Shape[0])
	job.Dst.Rows = w.out.Slice(to.Off+int64(row)*rowBytes, int64(part.Shape[0])*rowBytes)
	return job
}
