package pages

// Entry says where consecutive tokens of a request lie: in slots [Slot,
// Slot+Tokens) of a block. What else the block holds is padding or somebody
// else's, and masked.
type Entry struct {
	Block  int
	Slot   int
	Tokens int
	Begin  int  // the first one's position in the request; padding has none
	Shared bool // others may read it: whoever computes it first writes, nobody after
	// Compute is set where this request has to compute the tokens: its own, and
	// shared ones that nobody holds yet. Another request that is admitted
	// meanwhile and reads them has to wait until they are written.
	Compute bool
}

// Table is the entries of a request in order of Begin: every token that lies in the
// pool is in exactly one of them.
type Table []Entry

// Admitted is an admitted request. The table holds until its release.
type Admitted struct {
	Table    Table
	Computed int // tokens of prompt and output
	Reused   int // tokens that others have computed
	Padding  int // slots in blocks that this request was the first to take
}

// slotRun is slots of a block that many share.
type slotRun struct{ block, first, count int }

// storage is the memory of one run.
type storage struct {
	blocks []int
	rest   []slotRun
}

// entries lists where the tokens of a run lie.
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
