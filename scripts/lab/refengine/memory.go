package refengine

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// Memory is a Cache in this process: published bytes by key, never evicted.
type Memory struct {
	prof     *profile.Profile
	segments map[profile.SegmentKey]PackedSegment
}

// NewMemory returns an empty cache for segments of one profile.
func NewMemory(p *profile.Profile) *Memory {
	return &Memory{prof: p, segments: map[profile.SegmentKey]PackedSegment{}}
}

// Key implements Cache, with no salt.
func (c *Memory) Key(spec profile.SegmentSpec, tokens []uint32) profile.SegmentKey {
	return c.prof.SegmentKey(nil, spec, tokens)
}

// Match implements Cache.
func (c *Memory) Match(keys []profile.SegmentKey) ([]bool, error) {
	held := make([]bool, len(keys))
	for i, k := range keys {
		_, held[i] = c.segments[k]
	}
	return held, nil
}

// Publish implements Cache.
func (c *Memory) Publish(key profile.SegmentKey, _ []uint32, s *Segment[float32]) error {
	if _, ok := c.segments[key]; !ok {
		c.segments[key] = PackedSegment{Spec: s.Spec, Bytes: Pack(c.prof, s)}
	}
	return nil
}

// Acquire implements Cache.
func (c *Memory) Acquire(keys []profile.SegmentKey, _ []profile.SegmentSpec) (Leases, []bool, error) {
	held, err := c.Match(keys)
	leased := memoryLeases{c.prof, make([]PackedSegment, len(keys))}
	for i, k := range keys {
		leased.segments[i] = c.segments[k]
	}
	return leased, held, err
}

// Bytes returns a segment as it was published, to be read only.
func (c *Memory) Bytes(key profile.SegmentKey) []byte { return c.segments[key].Bytes }

// HeldBytes returns the total size of the segments.
func (c *Memory) HeldBytes() (n int64) {
	for _, s := range c.segments {
		n += int64(len(s.Bytes))
	}
	return n
}

type memoryLeases struct {
	prof     *profile.Profile
	segments []PackedSegment
}

func (l memoryLeases) Source(m *Model[float32], plan Plan, _ []uint32, from *State[float32]) (Source[float32], error) {
	return NewPacked(m, plan, from, l.segments)
}

// Rows implements InPlace.
func (l memoryLeases) Rows(i, layer int) ([]enginekernel.Run, int64, error) {
	s := l.segments[i]
	begin, n := s.Spec.Interior()
	layout := s.layout(l.prof)
	run := enginekernel.Run{Rows: n, Begin: begin}
	k, v := &layout.Parts[layout.Find(layer, profile.PartK)], &layout.Parts[layout.Find(layer, profile.PartV)]
	var err error
	if run.K, err = rowsOf(s.Bytes[k.Off:][:k.Len], k); err == nil {
		run.V, err = rowsOf(s.Bytes[v.Off:][:v.Len], v)
	}
	run.KStride, run.VStride = len(run.K)/n, len(run.V)/n
	return []enginekernel.Run{run}, 0, err
}

// Intact implements InPlace: segments are never evicted.
func (memoryLeases) Intact() error { return nil }

// Extend implements InPlace: nothing is ever evicted.
func (memoryLeases) Extend() error { return nil }

func (l memoryLeases) Packed(i int) PackedSegment { return l.segments[i] }

func (memoryLeases) Release() {}
