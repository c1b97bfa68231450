package profile

import "math"

// RowBytes has the bytes that decoding reads and writes in one rank's linear layers: their
// states, and a buffered row of one token (KVBuffer §3). These sizes determine when
// buffered rows pay off. The inputs of convolutions are excluded, since decoding reads only
// a few of them with or without a buffer.
type RowBytes struct {
	State int64 // of all states, in F32
	Row   int64 // of one token's row in all layers: decay, key, delta value
}

// RowBytes returns the sizes for the profile. They are zero if it has no linear layers.
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

// Step returns the average bytes that decoding one token moves with a buffer for the given
// number of rows (Eq. 6). Each token reads the states and on average half of the rows. The
// states are written once when the buffer is full. For comparison, recurrent decoding reads
// and writes the states: 2·State.
func (b RowBytes) Step(capacity int) float64 {
	c := float64(max(capacity, 1))
	return float64(b.State) + c/2*float64(b.Row) + float64(b.State)/c
}

// Flush returns the number of buffered rows after which to update the states. It minimizes
// Step and is sqrt(2·State/Row). This is sqrt(2d) for square heads of size d if a row
// element has half the bytes of a state element. The result is at least 1, which means
// recurrent decoding.
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

// Alone returns the number of tokens up to which decoding should keep rows only and no
// state: it then moves no more bytes per token than with states and the best buffer (§3.4).
// For the square heads of the comment on Flush the result is d + sqrt(2d).
func (b RowBytes) Alone() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.Step(b.Flush()) / float64(b.Row))
}

// Smaller returns the largest number of tokens whose rows take no more memory than the
// states.
func (b RowBytes) Smaller() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.State / b.Row)
}
