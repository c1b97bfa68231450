package objects

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
)

// Pack records that a segment was packed in place and has the layout that the parameter
// parts describes. It frees the whole pages after the last part. The segment is complete
// and not published yet.
func (s *Set) Pack(o *Object, packed profile.Packed, parts *plan.PartMap, digests [][]uint64) {
	ranks := int64(len(o.Shares))
	for i := range o.Shares {
		kept, given := s.Memory.cut(o.Shares[i].Extents, parts.Bytes)
		o.Shares[i].Extents, o.Shares[i].Digests = kept, digests[i]
		s.Memory.free(given)
	}
	s.Accounts.Resize(o, (s.Memory.PagesOf(parts.Bytes)-s.Memory.PagesOf(o.RankBytes))*ranks, (parts.Bytes-o.RankBytes)*ranks)
	o.RankBytes = parts.Bytes
	o.LaidOut(packed, parts)
}
