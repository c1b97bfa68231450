package tiering

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Stripping leaves those states in memory that share a page with rows. They are
// nobody's: a client may have begun to save the node again, from another run, and
// the lower tier may hold a copy of another run than the one that was in memory.
// So who makes a node whole writes all of its states, a save by its commits and a
// promotion by a patch.
//
// While a patch runs the node counts as being filled by the promotion, even if
// that ends meanwhile: nobody else may write there, and its memory stays.

// patch copies the states that share pages with rows from what a promotion has
// read to the stripped node that it is for.
func (s *Store) patch(ctx context.Context, p *promotion) error {
	s.mu.Lock()
	from, to := s.beginPatchLocked(p)
	o := p.into
	s.mu.Unlock()
	if len(from) == 0 {
		return nil
	}
	var err error
	for rank := range from {
		if err = s.plans.Memory.Copy(ctx, to[rank], from[rank]); err != nil {
			break
		}
	}
	s.mu.Lock()
	s.endPatchLocked(o)
	s.mu.Unlock()
	return err
}

// beginPatchLocked answers what to copy, by rank; nothing for a promotion that has
// ended, and one that is not of a stripped node.
func (s *Store) beginPatchLocked(p *promotion) (from, to []gpuipc.Ref) {
	o := p.into
	if o == nil {
		return nil, nil
	}
	edges := o.layout().StateEdges
	if len(edges) == 0 {
		return nil, nil
	}
	for i := range o.shares {
		from = append(from, gather(s.ref(&p.object.shares[i]), edges))
		to = append(to, gather(s.ref(&o.shares[i]), edges))
	}
	o.fill = &fill{promotion: p, copying: 1}
	s.settleLocked(o)
	return from, to
}

func (s *Store) endPatchLocked(o *object) {
	o.fill = nil
	s.settleLocked(o)
}

// gather is the part of ref that runs of it make up.
func gather(ref gpuipc.Ref, runs []gpuipc.Extent) gpuipc.Ref {
	out := gpuipc.Ref{Region: ref.Region}
	for _, run := range runs {
		out.Extents = append(out.Extents, ref.Slice(run.Off, run.Len).Extents...)
	}
	return out
}
