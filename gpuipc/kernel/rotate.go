package kernel

import "fmt"

// Turn rotates the first Dims numbers of a row. Pair i, which is (x, y), becomes (x cos - y
// sin, y cos + x sin) with Cos[i] and Sin[i]. Rotation by the angles of position p moves a
// key from position 0 to p (HYPIC Eq. 8). Rotations add up.
type Turn struct {
	Dims        int  // even; 0 = plain copy
	Interleaved bool // pairs (2i, 2i+1); false: pairs (i, i+Dims/2), as in NeoX
	Cos, Sin    []float32
}

// RotateRows copies rows of [heads, dim] numbers from src to dst and rotates every head.
// All rows have the same rotation: Cos and Sin have Dims/2 entries. Numbers past Dims are
// copied. src has no gaps. Head h of row r starts at byte r*dstRowStride + h*dstHeadStride
// of dst; bytes in between stay unchanged.
//
// Arithmetic is in F32 with fused multiply-adds, and the result is rounded to nearest even.
// It has the same bits on every processor, and NaN stays NaN. dst and src must not overlap.
// Wrong sizes panic.
func RotateRows(dst []byte, dstRowStride, dstHeadStride int, src []byte, dt DType, rows, heads, dim int, turn Turn) {
	g := grid{rows, heads, dim, dt, dstRowStride, dstHeadStride}
	checkTurn(turn, dim, 1)
	if g.check(dst, src) {
		rotateRows(dst, src, g, turn)
	}
}

// RotateRowsAt does RotateRows with a separate rotation for each row, for keys that are
// stored unrotated: turn.Cos and turn.Sin are [rows, Dims/2].
func RotateRowsAt(dst []byte, dstRowStride, dstHeadStride int, src []byte, dt DType, rows, heads, dim int, turn Turn) {
	g := grid{rows, heads, dim, dt, dstRowStride, dstHeadStride}
	checkTurn(turn, dim, rows)
	if g.check(dst, src) {
		rotateRowsAt(dst, src, g, turn)
	}
}

// grid describes the rows to copy.
type grid struct {
	rows, heads, dim      int
	dt                    DType
	rowStride, headStride int // of dst, in bytes
}

func (g *grid) headBytes() int { return g.dim * g.dt.Size() }
func (g *grid) rowBytes() int  { return g.heads * g.headBytes() }

// check panics if dst or src is too small, and reports whether there is work.
func (g *grid) check(dst, src []byte) bool {
	if g.dt.Size() == 0 || g.rows < 0 || g.heads < 0 || g.dim < 0 || g.rowStride < 0 || g.headStride < 0 {
		panic(fmt.Sprintf("kernel: rotate rows %+v", *g))
	}
	if g.rows == 0 || g.heads == 0 || g.dim == 0 {
		return false
	}
	end := (g.rows-1)*g.rowStride + (g.heads-1)*g.headStride + g.headBytes()
	if len(src) < g.rows*g.rowBytes() || len(dst) < end {
		panic(fmt.Sprintf("kernel: rotate rows %+v from %d to %d bytes", *g, len(src), len(dst)))
	}
	return true
}

func checkTurn(t Turn, dim, rows int) {
	n := rows * (t.Dims / 2)
	if t.Dims < 0 || t.Dims%2 != 0 || t.Dims > dim || len(t.Cos) != n || len(t.Sin) != n {
		panic(fmt.Sprintf("kernel: turn %d of %d dimensions with %d cosines, %d sines, want %d", t.Dims, dim, len(t.Cos), len(t.Sin), n))
	}
}
