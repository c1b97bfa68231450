package buffer

// Speculative decoding: m tokens are drafted, checked at once, and a prefix of
// them is kept. Numbers of Eq. 9 are for drafts that are all accepted.

// VerifyRecurrent is the bytes of checking m drafts with a state kept for each.
func (g Geometry) VerifyRecurrent(m int) float64 { return g.State() * float64(m+1) }

// VerifyBuffered is the bytes of checking m drafts with their rows, and of a
// state update right behind it.
func (g Geometry) VerifyBuffered(m int) float64 {
	rows := float64(m) * g.Row()
	return g.State() + rows + 2*g.State() + rows
}

// VerifyDeferred is the bytes of checking m drafts when accepted rows stay in a
// buffer of the given capacity: nothing is written for an acceptance, and the
// state moves once in capacity tokens, out of a read that is due anyway.
func (g Geometry) VerifyDeferred(m, capacity int) float64 {
	rows, c := float64(m)*g.Row(), float64(capacity)
	return g.State() + c/2*g.Row() + rows + float64(m)/c*g.State()
}

// VerifySpeedup is the recurrent bytes over the buffered ones (Eq. 9).
func (g Geometry) VerifySpeedup(m int) float64 { return g.VerifyRecurrent(m) / g.VerifyBuffered(m) }

// DraftMemory is how many times the memory of a request shrinks when m drafts keep
// rows instead of states.
func (g Geometry) DraftMemory(m int) float64 {
	return g.State() * float64(m+1) / (g.State() + float64(m)*g.Row())
}

// Form is a way to compute linear attention.
type Form uint8

// The forms. RowsOnly keeps no state at all.
const (
	Recurrent Form = 1 + iota
	Chunkwise
	RowsOnly
)

// RowsOnlySpeedup is the bytes of a chunkwise step over those of reading all rows
// of that many tokens (Eq. 10).
func (g Geometry) RowsOnlySpeedup(tokens, capacity int) float64 {
	return g.Step(capacity) / g.Parallel(tokens).Read
}

// BreakEven is up to how many tokens rows alone move no more bytes a step than the
// best chunkwise form: d + sqrt(2d) tokens for the paper's geometry.
func (g Geometry) BreakEven() int { return int(g.Step(g.Best()) / g.Row()) }

// StorageBreakEven is up to how many tokens rows alone take no more memory than a
// state.
func (g Geometry) StorageBreakEven() int { return int(g.State() / g.Row()) }

// Choose is the form of fewest bytes a step after so many tokens, and the rows that
// its buffer should hold.
func (g Geometry) Choose(tokens int) (f Form, capacity int) {
	best := g.Best()
	switch {
	case tokens <= g.BreakEven():
		return RowsOnly, g.BreakEven()
	case g.Step(best) < g.Recurrent().Moved():
		return Chunkwise, best
	}
	return Recurrent, 0
}
