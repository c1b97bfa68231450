package profile

import "math"

// RowBytes has the bytes of one rank's linear layers while decoding: their states, and a
// row of a recent token (KVBuffer §3). They determine when rows pay off. Convolution
// inputs are excluded: decoding reads a few of them in any form.
type RowBytes struct {
	State int64 // of all states, in F32
	Row   int64 // of one token's row in all layers: decay, key, delta value
}

// RowBytes returns the sizes for the profile, zero without linear layers.
func (p *Profile) RowBytes() (b RowBytes) {
	for _, part := range p.CheckpointLayout(0).Parts {
		if part.Kind == PartS {
			b.State += part.Len
		}
	}
	const rows = PartAlign // parts of that many rows have no padding
	for _, part := range p.BufferLayout(rows).Parts {
		if part.Kind != PartConv {
			b.Row += part.Len / rows
		}
	}
	return b
}

// Step returns the average bytes that decoding one token moves with a buffer of capacity
// rows: the states are read, with half of the rows, and written once per capacity tokens
// (Eq. 6). Recurrent decoding reads and writes the states: 2·State.
func (b RowBytes) Step(capacity int) float64 {
	c := float64(max(capacity, 1))
	return float64(b.State) + c/2*float64(b.Row) + float64(b.State)/c
}

// Flush returns the number of rows after which to update the states, the minimum of Step:
// sqrt(2·State/Row), which is sqrt(2d) for square heads of size d whose row elements have
// half the bytes of the state's. It is at least 1, which is recurrent decoding.
func (b RowBytes) Flush() int {
	if b.Row == 0 {
		return 1
	}
	low := max(1, int(math.Sqrt(2*float64(b.State)/float64(b.Row))))
	if b.Step(low+1) < b.Step(low) {
		return low + 1
	}
	return low
}

// Alone returns the number of tokens up to which rows without a state move no more bytes
// per token than states with the best buffer (§3.4): d + sqrt(2d) for the heads above.
func (b RowBytes) Alone() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.Step(b.Flush()) / float64(b.Row))
}

// Smaller returns the number of tokens up to which rows take no more memory than the
// states.
func (b RowBytes) Smaller() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.State / b.Row)
}
