package objects

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Pack records that a segment was packed in place and has the layout that the parameter
// parts describes. It frees the whole pages after the last part. The segment is complete
// and not published yet.
func (s *Set) Pack(o *Object, packed profile.Packed, parts *plan.PartMap, digests [][]uint64) {
	ranks := int64(len(o.Shares))
	for i := range o.Shares {
		kept, given := s.cut(o.Shares[i].Extents, parts.Bytes)
		o.Shares[i].Extents, o.Shares[i].Digests = kept, digests[i]
		s.freePages(given)
	}
	s.Resize(o, (s.PagesOf(parts.Bytes)-s.PagesOf(o.RankBytes))*ranks, (parts.Bytes-o.RankBytes)*ranks)
	o.RankBytes = parts.Bytes
	o.LaidOut(packed, parts)
}

// LaidOut sets the packed layout of a segment on its way into memory.
func (o *Object) LaidOut(packed profile.Packed, parts *plan.PartMap) {
	o.Packed, o.parts = packed, parts
}

// cut splits a share's extents into its first bytes (kept) and the whole pages after them
// (given).
func (s *Set) cut(extents []gpuipc.Extent, bytes int64) (kept, given []gpuipc.Extent) {
	for _, e := range extents {
		n := min(e.Len, bytes)
		if n > 0 {
			kept = append(kept, gpuipc.Extent{Off: e.Off, Len: n})
		}
		bytes -= n
		if whole := s.PagesOf(n); whole < e.Len {
			given = append(given, gpuipc.Extent{Off: e.Off + whole, Len: e.Len - whole})
		}
	}
	return kept, given
}

// copiedAs returns the layout of copies in HBM. The rows of copies are not packed, since
// the GPU kernels read plain rows.
func (o *Object) copiedAs() (profile.Packed, *plan.PartMap) {
	if o.Profile.RowTolerance() == 0 {
		return o.Packed, o.Layout()
	}
	packed, err := o.Profile.WithPlainRows(o.End-o.Begin, o.Packed)
	if err != nil {
		panic(fmt.Sprintf("objects: %v was not checked: %v", o.Name(), err))
	}
	return packed, o.Profile.PartsOf(&tier.Entry{Name: o.Identity().Name, Begin: o.Begin, End: o.End, Packed: packed})
}
