package radix

// A block is one cache line. It has symbols of one edge and the number of the next block.
const (
	blockSymbols = 15
	blockBits    = 10
	noBlock      = -1
)

type block struct {
	symbols [blockSymbols]uint32
	next    int32
}

// edges has the symbols of all edges, in blocks linked by number. The length of an edge
// tells which block is its last, so the field block.next of the last block is undefined.
type edges struct {
	pages []*[1 << blockBits]block
	given int32
	free  []run
}

// run is a chain of n free blocks; at is the number of the first block.
type run struct{ at, n int32 }

// edge is a sequence of symbols. It starts at index skip of the block numbered at.
type edge struct {
	at     int32
	skip   int
	length int
}

func (s *edges) block(b int32) *block { return &s.pages[b>>blockBits][b&(1<<blockBits-1)] }

func (s *edges) bytes() int64 { return int64(len(s.pages))<<blockBits*64 + int64(cap(s.free))*8 }

func (s *edges) symbol(b int32, skip int) uint32 { return s.block(b).symbols[skip] }

func (s *edges) newBlock() int32 {
	if last := len(s.free) - 1; last >= 0 {
		r := &s.free[last]
		b := r.at
		if r.n--; r.n == 0 {
			s.free = s.free[:last]
		} else {
			r.at = s.block(b).next
		}
		return b
	}
	b := s.given
	if int(b)>>blockBits == len(s.pages) {
		s.pages = append(s.pages, new([1 << blockBits]block))
	}
	s.given++
	return b
}

// store copies symbols into new blocks, and returns the number of the first block. In the
// first block it starts at index skip.
func (s *edges) store(skip int, symbols []uint32) int32 {
	head := s.newBlock()
	for b := head; ; {
		d := s.block(b)
		n := copy(d.symbols[skip:], symbols)
		symbols, skip = symbols[n:], 0
		if len(symbols) == 0 {
			return head
		}
		b = s.newBlock()
		d.next = b
	}
}

func (s *edges) read(e edge, to []uint32) {
	to = to[:e.length]
	for {
		d := s.block(e.at)
		to = to[copy(to, d.symbols[e.skip:]):]
		if len(to) == 0 {
			return
		}
		e.at, e.skip = d.next, 0
	}
}

// common returns the number of symbols that an edge shares with the start of
// symbols.
func (s *edges) common(at int32, skip, length int, symbols []uint32) int {
	length = min(length, len(symbols))
	for done := 0; done < length; {
		d := s.block(at)
		if skip == 0 && length-done >= blockSymbols && d.symbols == [blockSymbols]uint32(symbols[done:]) {
			done += blockSymbols
			at = d.next
			continue
		}
		here := d.symbols[skip:]
		here = here[:min(len(here), length-done)]
		for i, v := range here {
			if v != symbols[done+i] {
				return done + i
			}
		}
		done += len(here)
		at, skip = d.next, 0
	}
	return length
}

// cut ends an edge after its first k symbols and returns the start of the remainder. If
// both parts have symbols in the same block, cut gives the remainder a copy of the block.
func (s *edges) cut(e edge, k int) (at int32, skip uint8) {
	for e.skip+k > blockSymbols {
		k -= blockSymbols - e.skip
		e.at, e.skip = s.block(e.at).next, 0
	}
	from := s.block(e.at)
	if e.skip+k == blockSymbols {
		return from.next, 0
	}
	b := s.newBlock()
	*s.block(b) = *from
	return b, uint8(e.skip + k)
}

// join links edge b to the end of edge a and returns the start of the result. Edge b must
// start at the offset within a block at which edge a ends. If it starts elsewhere, join
// first moves the shorter of the two edges.
func (s *edges) join(a, b edge) (at int32, skip uint8) {
	if ends := (a.skip + a.length) % blockSymbols; ends != b.skip {
		if b.length <= a.length {
			b = s.move(b, ends)
		} else {
			a = s.move(a, ((b.skip-a.length)%blockSymbols+blockSymbols)%blockSymbols)
		}
	}
	before, last, from := int32(noBlock), a.at, a.skip
	for left := a.length; from+left > blockSymbols; {
		left -= blockSymbols - from
		before, last, from = last, s.block(last).next, 0
	}
	if b.skip == 0 {
		s.block(last).next = b.at
		return a.at, uint8(a.skip)
	}
	copy(s.block(b.at).symbols[from:b.skip], s.block(last).symbols[from:])
	s.release(edge{last, from, b.skip - from})
	if before == noBlock {
		return b.at, uint8(a.skip)
	}
	s.block(before).next = b.at
	return a.at, uint8(a.skip)
}

// move copies an edge to new blocks, starting at index skip of the first one, and frees the
// old blocks.
func (s *edges) move(e edge, skip int) edge {
	symbols := make([]uint32, e.length)
	s.read(e, symbols)
	s.release(e)
	return edge{s.store(skip, symbols), skip, e.length}
}

// release frees the blocks of an edge. It does not read them.
func (s *edges) release(e edge) {
	s.free = append(s.free, run{e.at, int32((e.skip + e.length + blockSymbols - 1) / blockSymbols)})
}
