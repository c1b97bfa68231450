package policy

// candidate is a possible victim: a position in the heap of a cell.
type candidate struct {
	rank float64
	used int64
	cell *cell
	pos  int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.used < d.used
}

// frontier orders the heap of candidates from all cells.
type frontier struct{}

func (frontier) before(c, d candidate) bool { return c.before(d) }

func (frontier) moved(candidate, int32) {}
