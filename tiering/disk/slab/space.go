package slab

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Bounds of the granule in bytes: at least the unit of transfers, and at most what an
// entry may waste at its end.
const (
	MinGranule = BlockBytes
	MaxGranule = 1 << 20
)

// MaxRuns is the most runs of one allocation. It is small enough that the runs fit into
// the first 4 KiB of an entry's header, and into a catalogue row, which is read at every
// opening. An entry of up to 64 granules always finds a place if enough bytes are free. A
// larger entry may get ErrFragmented; then more entries have to be evicted.
const MaxRuns = 64

// Run is a piece of a slab, in bytes. Space allocates runs of whole granules.
type Run struct {
	Slab uint32
	Off  int64
	Len  int64
}

func (r Run) String() string { return fmt.Sprintf("slab %d [%d,+%d)", r.Slab, r.Off, r.Len) }

// RunBytes returns the total length of runs.
func RunBytes(runs []Run) (bytes int64) {
	for _, r := range runs {
		bytes += r.Len
	}
	return bytes
}

// Space tracks which granules of the slabs are free. It does no I/O and stores nothing:
// after opening, the caller adds all slabs (AddSlab) and marks the space in use (Take).
//
// An allocation is one run if any free run is long enough: part of the shortest such run.
// Otherwise it takes the longest free runs, so it has as few runs as possible. Freed runs are
// joined with free neighbors. Each step takes logarithmic time in the number of free runs.
//
// Invariant: each granule of a slab except the first is in exactly one free run or in
// exactly one allocation. No two free runs touch.
//
// Invariant: an allocation is less than one granule larger than requested, and any other
// granule can be allocated. So less than one granule is wasted per entry, and one per slab.
type Space struct {
	granule int64

	mu struct {
		sync.Mutex
		slabs map[uint32]int64 // number of granules by slab, including the header's
		free  int64            // number of free granules
		total int64            // granules that can be allocated
		place *tree            // the free runs, by position
		size  *tree            // the free runs, by length
	}
}

// SpaceUsage is a snapshot of a Space, in bytes.
type SpaceUsage struct {
	Slabs      int
	TotalBytes int64 // bytes that can be allocated, free or not
	FreeBytes  int64
	FreeRuns   int
	LongestRun int64
}

// NewSpace returns a Space without slabs. The granule is a power of two from MinGranule
// to MaxGranule.
func NewSpace(granule int64) *Space {
	if !validGranule(granule) {
		panic(fmt.Sprintf("slab: granule of %d bytes", granule))
	}
	s := &Space{granule: granule}
	s.mu.slabs = map[uint32]int64{}
	s.mu.place, s.mu.size = newTree(byPlace), newTree(byLength)
	return s
}

func validGranule(g int64) bool { return g >= MinGranule && g <= MaxGranule && g&(g-1) == 0 }

// Granule returns the unit of allocation in bytes.
func (s *Space) Granule() int64 { return s.granule }

// Round rounds a number of bytes up to whole granules.
func (s *Space) Round(bytes int64) int64 { return (bytes + s.granule - 1) &^ (s.granule - 1) }

// AddSlab adds a slab. All of it is free except the first granule, which has the header.
// A partial granule at the end stays unused.
func (s *Space) AddSlab(n uint32, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	granules := bytes / s.granule
	if _, twice := s.mu.slabs[n]; twice || granules < 2 {
		panic(fmt.Sprintf("slab: slab %d of %d bytes added to granules of %d; there before: %v", n, bytes, s.granule, twice))
	}
	s.mu.slabs[n] = granules
	s.mu.total += granules - 1
	s.addLocked(span{slab: n, off: 1, len: granules - 1})
}

// RemoveSlab removes a slab if all of it is free; false if it is in use.
func (s *Space) RemoveSlab(n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	granules, ok := s.mu.slabs[n]
	if !ok {
		panic(fmt.Sprintf("slab: slab %d removed, which is none of %d", n, len(s.mu.slabs)))
	}
	whole := span{slab: n, off: 1, len: granules - 1}
	if run, _ := s.mu.place.ceiling(whole); run != whole {
		return false
	}
	s.dropLocked(whole)
	s.mu.total -= whole.len
	delete(s.mu.slabs, n)
	return true
}

// Alloc allocates whole granules for bytes, in at most MaxRuns runs. After an error nothing
// is allocated. tier.ErrFull means that too few bytes are free, or that too many runs would
// be needed (ErrFragmented).
func (s *Space) Alloc(bytes int64) ([]Run, error) {
	if bytes <= 0 {
		panic(fmt.Sprintf("slab: allocation of %d bytes", bytes))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.mu.free*s.granule {
		return nil, fmt.Errorf("%d bytes of slabs, %d free: %w", bytes, s.mu.free*s.granule, tier.ErrFull)
	}
	want := s.Round(bytes) / s.granule
	var taken []span
	rest := want
	for rest > 0 && len(taken) < MaxRuns {
		run, fits := s.mu.size.ceiling(span{len: rest})
		if !fits {
			run, _ = s.mu.size.last() // no run is long enough: use all of the longest
		}
		s.dropLocked(run)
		if run.len > rest {
			s.addLocked(span{slab: run.slab, off: run.off + rest, len: run.len - rest})
			run.len = rest
		}
		taken = append(taken, run)
		rest -= run.len
	}
	if rest > 0 {
		for _, t := range taken {
			s.giveLocked(t)
		}
		return nil, fmt.Errorf("%d bytes of slabs, %d free, %d of them in the %d longest runs: %w",
			bytes, s.mu.free*s.granule, (want-rest)*s.granule, MaxRuns, ErrFragmented)
	}
	runs := make([]Run, len(taken))
	for i, t := range taken {
		runs[i] = Run{Slab: t.slab, Off: t.off * s.granule, Len: t.len * s.granule}
	}
	return runs, nil
}

// Free frees allocated runs, or parts of them. It panics if a run is free already or not
// in a slab, since that is an accounting error.
func (s *Space) Free(runs []Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range runs {
		p, err := s.spanLocked(r)
		if err == nil {
			err = s.usedLocked(p)
		}
		if err != nil {
			panic(fmt.Sprintf("slab: free: %v", err))
		}
		s.giveLocked(p)
	}
}

// Take marks runs as in use that an earlier process allocated. It returns tier.ErrInvalid
// and marks nothing if a run is not free, or does not consist of whole granules of a slab.
func (s *Space) Take(runs []Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range runs {
		p, err := s.spanLocked(r)
		if err == nil {
			err = s.takeLocked(p)
		}
		if err != nil {
			for _, done := range runs[:i] {
				p, _ := s.spanLocked(done)
				s.giveLocked(p)
			}
			return fmt.Errorf("take %d runs: %w", len(runs), err)
		}
	}
	return nil
}

// FreeBytes returns the free bytes, in any number of runs.
func (s *Space) FreeBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.free * s.granule
}

// Slabs returns the numbers of the slabs, in order.
func (s *Space) Slabs() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.mu.slabs))
}

// Usage returns a snapshot.
func (s *Space) Usage() SpaceUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest, _ := s.mu.size.last()
	return SpaceUsage{
		Slabs:      len(s.mu.slabs),
		TotalBytes: s.mu.total * s.granule,
		FreeBytes:  s.mu.free * s.granule,
		FreeRuns:   s.mu.place.count,
		LongestRun: longest.len * s.granule,
	}
}

// spanLocked converts a run to granules that can be allocated.
func (s *Space) spanLocked(r Run) (span, error) {
	granules, ok := s.mu.slabs[r.Slab]
	p := span{slab: r.Slab, off: r.Off / s.granule, len: r.Len / s.granule}
	switch {
	case !ok:
		return p, fmt.Errorf("%v: no such slab among %d: %w", r, len(s.mu.slabs), tier.ErrInvalid)
	case r.Off%s.granule != 0 || r.Len%s.granule != 0 || r.Len <= 0:
		return p, fmt.Errorf("%v: not granules of %d: %w", r, s.granule, tier.ErrInvalid)
	case p.off < 1 || p.off > granules || p.len > granules-p.off:
		return p, fmt.Errorf("%v: outside of its %d granules of %d: %w", r, granules, s.granule, tier.ErrInvalid)
	}
	return p, nil
}

// usedLocked fails if any granule of p is free.
func (s *Space) usedLocked(p span) error {
	if n, ok := s.mu.place.ceiling(p); ok && n.slab == p.slab && n.off < p.end() {
		return fmt.Errorf("%v: %v is free already: %w", s.run(p), s.run(n), tier.ErrInvalid)
	}
	if n, ok := s.mu.place.below(p); ok && n.slab == p.slab && n.end() > p.off {
		return fmt.Errorf("%v: %v is free already: %w", s.run(p), s.run(n), tier.ErrInvalid)
	}
	return nil
}

// takeLocked cuts p out of the free run around it.
func (s *Space) takeLocked(p span) error {
	// n is the last free run that begins at or before p.
	n, ok := s.mu.place.below(span{slab: p.slab, off: p.off + 1})
	if !ok || n.slab != p.slab || n.end() < p.end() {
		return fmt.Errorf("%v: not all of it is free: %w", s.run(p), tier.ErrInvalid)
	}
	s.dropLocked(n)
	if n.off < p.off {
		s.addLocked(span{slab: n.slab, off: n.off, len: p.off - n.off})
	}
	if n.end() > p.end() {
		s.addLocked(span{slab: n.slab, off: p.end(), len: n.end() - p.end()})
	}
	return nil
}

// giveLocked frees p and joins it with the free runs that it touches.
func (s *Space) giveLocked(p span) {
	if n, ok := s.mu.place.below(p); ok && n.slab == p.slab && n.end() == p.off {
		s.dropLocked(n)
		p.off, p.len = n.off, n.len+p.len
	}
	if n, ok := s.mu.place.ceiling(p); ok && n.slab == p.slab && n.off == p.end() {
		s.dropLocked(n)
		p.len += n.len
	}
	s.addLocked(p)
}

func (s *Space) addLocked(p span) {
	s.mu.place.insert(p)
	s.mu.size.insert(p)
	s.mu.free += p.len
}

func (s *Space) dropLocked(p span) {
	if !s.mu.place.remove(p) || !s.mu.size.remove(p) {
		panic(fmt.Sprintf("slab: free run %v is in one index only", s.run(p)))
	}
	s.mu.free -= p.len
}

func (s *Space) run(p span) Run {
	return Run{Slab: p.slab, Off: p.off * s.granule, Len: p.len * s.granule}
}
