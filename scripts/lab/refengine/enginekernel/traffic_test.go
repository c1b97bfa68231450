package enginekernel

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Eq. 6 charges 73,728 bytes a step at 16 rows and d=128; a head that decays has
// four bytes more in each row.
func TestDecodingMovesTheBytesOfEquation6(t *testing.T) {
	for capacity, want := range map[int]int{2: 98816, 4: 82944, 8: 75776, 16: 73728, 32: 75776, 64: 82944} {
		b, total := NewBuffer(128, 128, 1, capacity, kernel.F16, kernel.Scalar, true), 0
		for ; b.N < capacity; b.N++ {
			moved := b.Traffic(1, true, b.N == capacity-1)
			if read := b.N * (2*128 + 2*128 + 4); moved.RowsRead != read || moved.RowsWritten != 2*128+2*128+4 {
				t.Errorf("with %d rows: %+v", b.N, moved)
			}
			total += moved.Moved()
		}
		if got := total / capacity; got < want || got > want*102/100 {
			t.Errorf("%d rows: %d bytes a step, want %d and at most 2 %% more", capacity, got, want)
		}
	}
}
