package cost

import "github.com/spliced-kv/spliced/policy/profile"

// FromProfile returns the bytes of a model over all ranks.
func FromProfile(p *profile.Profile) Shape {
	ranks := int64(p.TPSize())
	checkpoint, segment := p.CheckpointLayout(0), p.SegmentLayout(0)
	s := Shape{SegmentBytes: segment.Bytes * ranks}
	for _, part := range checkpoint.Parts {
		switch part.Kind {
		case profile.PartS:
			s.StateBytes += part.Len * ranks
		case profile.PartConv:
			s.ConvBytes += part.Len * ranks
		}
	}
	// Parts are aligned to PartAlign bytes, so a multiple of PartAlign rows has no padding.
	const rows = profile.PartAlign
	s.KVBytes = (p.CheckpointLayout(rows).Bytes - checkpoint.Bytes) / rows * ranks
	if p.KeepsRows() {
		s.DeltaBytes = p.BufferLayout(rows).Bytes / rows * ranks
	}
	return s
}
