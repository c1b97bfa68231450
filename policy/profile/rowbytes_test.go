package profile

import "testing"

// With heads of 128 numbers, states in F32 and rows of half the bytes, the paper's
// numbers come out: 73,728 bytes a step at C = 16 (Eq. 6), rows alone up to 144 tokens
// (§3.4).
func TestRowBytesGiveThePapersNumbers(t *testing.T) {
	b := RowBytes{State: 4 * 128 * 128, Row: 4 * 128}
	for c, want := range map[int]float64{2: 98816, 4: 82944, 8: 75776, 16: 73728, 32: 75776, 64: 82944} {
		if got := b.Step(c); got != want {
			t.Errorf("%d rows: %v bytes a step, want %v", c, got, want)
		}
	}
	if b.Flush() != 16 || b.Alone() != 144 || b.Smaller() != 128 {
		t.Errorf("flush after %d rows, rows alone to %d tokens, smaller to %d", b.Flush(), b.Alone(), b.Smaller())
	}
	for c := 1; c < 300; c++ {
		for _, b := range []RowBytes{b, {State: 1 << 20, Row: 772}, {State: 300, Row: 299}, {State: 64, Row: 640}} {
			if b.Step(c) < b.Step(b.Flush()) {
				t.Errorf("%+v: %v bytes with %d rows, %v with %d", b, b.Step(c), c, b.Step(b.Flush()), b.Flush())
			}
		}
	}
	if b := (RowBytes{}); b.Flush() != 1 || b.Alone() != 0 || b.Smaller() != 0 {
		t.Errorf("no linear layers: %d, %d, %d", b.Flush(), b.Alone(), b.Smaller())
	}
}

// A profile counts what its layouts hold, padding apart.
func TestRowBytesOfAProfile(t *testing.T) {
	p, err := New(hybrid()) // two ranks
	must(t, err)
	b := p.RowBytes()
	// Layer 0: decays 2, key 16, values 16; layer 3: decays 2, keys 16, values 16.
	if b.Row != 4*(2+16+16+2+16+16) {
		t.Errorf("%d bytes a row", b.Row)
	}
	states := int64(0)
	for _, part := range p.CheckpointLayout(0).Parts {
		if part.Kind == PartS {
			states += part.Len
		}
	}
	if b.State != states {
		t.Errorf("%d bytes of states, want %d", b.State, states)
	}
}
