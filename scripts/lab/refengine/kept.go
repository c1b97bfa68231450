package refengine

import (
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// kept is the location of the keys and values of one layer: contiguous, or in pages.
type kept[F Float] struct {
	k, v  []F    // [end, KVHeads, HeadDim]
	pages *Table // used instead of k and v, in float32 only
	layer int
	ahead int // added to the position to find the row; for drafts that branch
}

// row returns the memory into which the keys and values of a position are computed, and the
// position to which its keys must be rotated.
func (c *kept[F]) row(pos, size int, scratch *[]F) (k, v []F, turned int) {
	at := pos + c.ahead
	if c.pages == nil {
		return c.k[at*size:][:size], c.v[at*size:][:size], pos
	}
	both := sized(scratch, 2*size)
	return both[:size], both[size:], pos - c.pages.slots[at].origin
}

// put stores a computed row in its page. Contiguous rows are already in place.
func (c *kept[F]) put(pos int, k, v []F) {
	if c.pages != nil {
		c.pages.put(c.layer, pos+c.ahead, any(k).([]float32), any(v).([]float32))
	}
}

// keptRuns returns the rows of the positions below end as runs for the attention kernel.
func keptRuns(c *kept[float32], end, size int) ([]enginekernel.Run, kernel.DType) {
	if c.pages != nil {
		return c.pages.runs[c.layer], c.pages.mem.dtype
	}
	return []enginekernel.Run{{K: bytesOf(c.k), V: bytesOf(c.v), KStride: 4 * size, VStride: 4 * size, Rows: end}}, kernel.F32
}

// bytesOf returns the memory of a slice.
func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
