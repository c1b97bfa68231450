package objects

import "github.com/spliced-kv/spliced/tiering/plan"

// Heap of the daemon in addition to pages and token ids. Pages do not bound it: a
// stripped node of a model without rows has none left, and each leaf can have a chain of
// such ancestors.
const (
	// objectBytes covers an object and its records in the catalogue, the table and the
	// policies, with a quota and a lower tier: 1,000 bytes (measured, and checked by a
	// test), rounded up.
	objectBytes = 1280
	// shareBytes covers a rank's share and its extents that are not whole pages: a hole
	// at either end.
	shareBytes  = 96
	digestBytes = 8
)

func recordBytes(shares, digests int) int64 {
	return objectBytes + int64(shares)*(shareBytes+digestBytes*int64(digests))
}

// PagesOf rounds one rank's layout up to whole pages.
func (s *Set) PagesOf(bytes int64) int64 {
	page := int64(s.cfg.PageBytes)
	return (bytes + page - 1) / page * page
}

// SizeOf returns what an object of a layout with a number of token ids costs in memory.
func (s *Set) SizeOf(p *Profile, l *plan.PartMap, tokens int) Size {
	ranks, ids := int64(p.Ranks), 4*int64(tokens)
	z := Size{
		RankBytes: l.Bytes, Bytes: l.Bytes*ranks + ids, PageBytes: s.PagesOf(l.Bytes)*ranks + ids,
		RecordBytes: recordBytes(p.Ranks, l.Chunks()),
	}
	for _, run := range l.StatePages {
		z.StateBytes += run.Len * ranks
		z.StatePages += s.PagesOf(run.Len) * ranks
	}
	return z
}

// Measure sets the size of an object, token ids included.
func (s *Set) Measure(o *Object) {
	o.Shares = make([]Share, o.Profile.Ranks)
	o.Size = s.SizeOf(o.Profile, o.Layout(), o.Spec.Tokens)
}

// MeasureBuffer sets the size of memory claimed for one rank.
func (s *Set) MeasureBuffer(o *Object, bytes int64) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: s.PagesOf(bytes), RecordBytes: recordBytes(1, 0)}
}

// MeasureCopy sets the size in HBM of one rank's share with a number of digests. Token
// ids are not stored there.
func (s *Set) MeasureCopy(o *Object, bytes int64, digests int) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: o.Pool.Device.PagesOf(bytes), RecordBytes: recordBytes(1, digests)}
}
