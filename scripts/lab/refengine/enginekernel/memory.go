package enginekernel

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// grow makes b at least n numbers long; their contents are undefined.
func grow(b *[]float32, n int) {
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:cap(*b)]
}

// checkMatrix panics unless v has rows that are ld numbers apart.
func checkMatrix(name string, v []float32, ld, rows, cols int) {
	if rows < 0 || cols < 0 || ld < cols || (rows > 0 && cols > 0 && len(v) < (rows-1)*ld+cols) {
		panic(fmt.Sprintf("enginekernel: %s [%d, %d] with rows %d apart in %d numbers", name, rows, cols, ld, len(v)))
	}
}

// checkTurn panics unless t rotates rows of dim numbers.
func checkTurn(t kernel.Turn, dim int) {
	if n := t.Dims / 2; t.Dims < 0 || t.Dims%2 != 0 || t.Dims > dim || len(t.Cos) != n || len(t.Sin) != n {
		panic(fmt.Sprintf("enginekernel: turn %d of %d dimensions with %d cosines, %d sines", t.Dims, dim, len(t.Cos), len(t.Sin)))
	}
}

// pair returns the two dimensions of pair i.
func pair(i, dims int, interleaved bool) (int, int) {
	if interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + dims/2
}
