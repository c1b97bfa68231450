package profile

import "math"

// RowBytes is what one rank's linear layers keep while decoding: their states, and
// beside them rows of recent tokens (KVBuffer §3). From the two follows when rows pay.
// Convolution inputs are in neither: decoding reads a few of them in any form.
type RowBytes struct {
	State int64 // of all states, in F32
	Row   int64 // of one token's row in all layers: decay, key, delta value
}

// RowBytes counts a profile's. It is zero without linear layers.
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

// Step is the bytes that decoding one token moves beside a buffer of so many rows, on
// average: the states are read, with half of the rows, and written once in that many
// tokens (Eq. 6). The states of recurrent decoding are read and written: 2·State.
func (b RowBytes) Step(capacity int) float64 {
	c := float64(max(capacity, 1))
	return float64(b.State) + c/2*float64(b.Row) + float64(b.State)/c
}

// Flush is the rows after which to move the states on: where Step is least,
// sqrt(2·State/Row), which is sqrt(2d) for square heads of d numbers whose rows take
// half the bytes of the state's numbers. It is at least 1, which is recurrent decoding.
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

// Alone is up to how many tokens rows without any state move no more bytes a token than
// states with the best buffer do (§3.4): d + sqrt(2d) for the heads above.
func (b RowBytes) Alone() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.Step(b.Flush()) / float64(b.Row))
}

// Smaller is up to how many tokens rows take no more memory than the states do.
func (b RowBytes) Smaller() int {
	if b.Row == 0 {
		return 0
	}
	return int(b.State / b.Row)
}
