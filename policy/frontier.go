package policy

// candidate is an object that may be the next victim.
type candidate struct {
	rank float64
	used int64
	cell *cell
	pos  int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.used < d.used
}

// frontier is a heap of candidates, the first one on top.
type frontier []candidate

func (f *frontier) push(c candidate) {
	h := append(*f, c)
	for at := len(h) - 1; at > 0 && h[at].before(h[(at-1)/2]); at = (at - 1) / 2 {
		h[at], h[(at-1)/2] = h[(at-1)/2], h[at]
	}
	*f = h
}

func (f *frontier) pop() (candidate, bool) {
	h := *f
	if len(h) == 0 {
		return candidate{}, false
	}
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for at := 0; 2*at+1 < len(h); {
		child := 2*at + 1
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[at]) {
			break
		}
		h[at], h[child] = h[child], h[at]
		at = child
	}
	*f = h
	return top, true
}
