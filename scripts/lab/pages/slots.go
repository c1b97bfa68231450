package pages

import "slices"

// slots manages the blocks that several runs share. Such a block contains rests of runs: the
// tokens of a run after its whole blocks. A block belongs to slots while any of its slots is in
// use.
//
// Invariant: a slot belongs to at most one run. used[b] counts the slots of block b that are in
// use, and held[b] the slots of block b that resident requests reference.
type slots struct {
	size   int            // slots per block
	taken  map[int][]bool // by block
	used   map[int]int
	held   map[int]int
	gaps   []int // blocks with a free slot, ascending
	free   int   // slots
	pinned int   // blocks with referenced slots
	heldIn int   // referenced slots
}

func newSlots(size int) slots {
	return slots{size: size, taken: map[int][]bool{}, used: map[int]int{}, held: map[int]int{}}
}

// loose returns the number of blocks without referenced slots. room returns the number of slots
// that would be free in the remaining blocks if all unreferenced slots were freed.
func (s *slots) loose() int { return len(s.taken) - s.pinned }
func (s *slots) room() int  { return s.pinned*s.size - s.heldIn }

// alloc takes n slots: first from blocks with free slots, in order of block number, then from
// blocks that the function more returns. The slots count as unreferenced until the method hold
// is called for them.
func (s *slots) alloc(n int, more func() int) []slotRun {
	var list []slotRun
	for n > 0 {
		if len(s.gaps) == 0 {
			b := more()
			s.taken[b] = make([]bool, s.size)
			s.free += s.size
			s.gaps = append(s.gaps, b)
		}
		b := s.gaps[0]
		r := s.takeRun(b, n)
		list = append(list, r)
		n -= r.count
		if s.used[b] == s.size {
			s.gaps = s.gaps[1:]
		}
	}
	return list
}

// takeRun takes the lowest free run of a block with a gap.
func (s *slots) takeRun(b, n int) slotRun {
	taken := s.taken[b]
	r := slotRun{block: b, first: slices.Index(taken, false)}
	for i := r.first; i < s.size && !taken[i] && r.count < n; i++ {
		taken[i] = true
		r.count++
	}
	s.used[b] += r.count
	s.free -= r.count
	return r
}

// hold counts slots as referenced if sign is 1, and as no longer referenced if sign is -1.
func (s *slots) hold(list []slotRun, sign int) {
	for _, r := range list {
		was := s.held[r.block]
		s.held[r.block] = was + sign*r.count
		s.heldIn += sign * r.count
		if was == 0 {
			s.pinned++
		} else if s.held[r.block] == 0 {
			s.pinned--
		}
	}
}

// release frees unreferenced slots, and calls the function back with each block that becomes
// empty.
func (s *slots) release(list []slotRun, back func(block int)) {
	for _, r := range list {
		for i := range r.count {
			s.taken[r.block][r.first+i] = false
		}
		at, has := slices.BinarySearch(s.gaps, r.block)
		if !has {
			s.gaps = slices.Insert(s.gaps, at, r.block)
		}
		s.used[r.block] -= r.count
		s.free += r.count
		if s.used[r.block] == 0 {
			at, _ = slices.BinarySearch(s.gaps, r.block)
			s.gaps = slices.Delete(s.gaps, at, at+1)
			s.free -= s.size
			delete(s.taken, r.block)
			delete(s.used, r.block)
			delete(s.held, r.block)
			back(r.block)
		}
	}
}
