package pages

// Entry is the location of consecutive tokens of a request: slots [Slot, Slot+Tokens) of a
// block. Other slots of the block are padding or belong to other requests; the kernel must mask
// them.
type Entry struct {
	Block  int
	Slot   int
	Tokens int
	Begin  int  // position of the first token in the request
	Shared bool // other requests may read it; the request that computes it first writes it, once
	// Compute is set if this request must compute the tokens: its own tokens, and shared tokens
	// that are not cached yet. Another request that is admitted in the meantime and reads them
	// must wait until they are written.
	Compute bool
}

// Table is the entries of a request in order of Begin: every token stored in the pool is in
// exactly one of them.
type Table []Entry

// Admitted is an admitted request. The table is valid until its release.
type Admitted struct {
	Table    Table
	Computed int // tokens of prompt and output
	Reused   int // tokens computed by other requests
	Padding  int // unused slots in blocks that this request was the first to take
}

// slotRun is a range of slots in a block that several runs share.
type slotRun struct{ block, first, count int }

// storage is the memory of one run.
type storage struct {
	blocks []int
	rest   []slotRun
}

// entries appends the locations of the tokens of a run.
func (s *storage) entries(t Table, n *run, block int, compute bool) Table {
	e := Entry{Begin: n.begin, Shared: n.what != own, Compute: compute}
	add := func(block, slot, tokens int) {
		e.Block, e.Slot, e.Tokens = block, slot, tokens
		t = append(t, e)
		e.Begin += tokens
	}
	left := n.tokens
	whole := func() {
		pad := 0
		if n.chunk && len(s.rest) == 0 {
			pad = len(s.blocks)*block - n.tokens
		}
		for _, b := range s.blocks {
			count := min(block-pad, left)
			add(b, pad, count)
			left, pad = left-count, 0
		}
	}
	rest := func() {
		for _, r := range s.rest {
			add(r.block, r.first, r.count)
			left -= r.count
		}
	}
	if n.chunk {
		rest()
		whole()
	} else {
		whole()
		rest()
	}
	return t
}
