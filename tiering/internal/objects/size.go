package objects

import "github.com/spliced-kv/spliced/tiering/plan"

// Bytes of the daemon's heap per object, in addition to pages and token ids. The number of
// pages does not bound them: a stripped checkpoint of a model without rows has no pages
// left, and each leaf can have a chain of such ancestors.
const (
	// objectBytes covers an object and its records in the catalog, the table and the policies,
	// with a quota and a lower tier: 1,000 bytes (measured, and checked by a test), rounded up.
	objectBytes = 1280
	// shareBytes covers a rank's share and the extents that it has in addition to whole
	// pages: a hole at either end.
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

// SizeOf returns the size in memory of an object with a layout and a number of token ids.
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

// MeasureBuffer sets the size of a buffer in memory, which belongs to one rank.
func (s *Set) MeasureBuffer(o *Object, bytes int64) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: s.PagesOf(bytes), RecordBytes: recordBytes(1, 0)}
}

// MeasureCopy sets the size of one rank's copy or buffer in HBM, with a number of digests.
// HBM has no token ids.
func (s *Set) MeasureCopy(o *Object, bytes int64, digests int) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: o.Pool.Device.PagesOf(bytes), RecordBytes: recordBytes(1, digests)}
}
