package kernel

import "math"

// turning is items (heads) to copy and rotate alike. The assembly depends on
// its layout; it advances dst and src to the last batch. All sizes but counts
// are in bytes.
type turning struct {
	dst, src         *byte
	cos, sin         *float32 // in the order of the vectors
	restCos, restSin *float32 // of pairs past the vectors, in their own order

	items, batch         int // remaining (the assembly counts down), at a time
	_                    int // items of this batch, for the assembly
	dstStride, srcStride int
	headBytes            int
	half                 int // from x to y
	vectors              int // how far x goes in vectors
	rest                 int // pairs past them
	copyFrom             int // start of the part that is not rotated
}

const (
	// batchBytes bounds a batch of items, which are processed once for every
	// run of dimensions. From 4 KiB on it is slower (measured): loads wait for
	// earlier stores whose addresses end in the same 12 bits.
	batchBytes = 2 << 10
	// callBytes bounds one call of assembly, which the scheduler cannot interrupt.
	callBytes = 256 << 10
)

// smallTable is the size of tables of up to 256 dimensions, which need no
// allocation.
const smallTable = 512

func rotateRows(dst, src []byte, g grid, turn Turn) {
	if active == plainGo {
		rotateRowsGeneric(dst, src, g, turn)
		return
	}
	var space [smallTable]float32
	t, v := prepared(active, g, turn, space[:])
	t.move(v, dst, src, g, turn.Interleaved)
}

func rotateRowsAt(dst, src []byte, g grid, turn Turn) {
	if active == plainGo {
		rotateRowsAtGeneric(dst, src, g, turn)
		return
	}
	var space [smallTable]float32
	one := g
	one.rows = 1
	for r := range g.rows {
		t, v := prepared(active, one, turn.row(r), space[:])
		t.move(v, dst[r*g.rowStride:], src[r*g.rowBytes():], one, turn.Interleaved)
	}
}

// prepared sets everything but the memory to work on, and returns the
// instruction set to use: vectors of AVX-512 must fit the pairs without a
// remainder.
func prepared(v isa, g grid, turn Turn, space []float32) (turning, isa) {
	pairs, size := turn.Dims/2, g.dt.Size()
	if pairs%v.pairs() != 0 {
		v = avx2
	}
	whole := pairs / v.pairs() * v.pairs()
	t := turning{
		headBytes: g.headBytes(), half: pairs * size,
		vectors: whole * size, rest: pairs - whole, copyFrom: turn.Dims * size,
	}
	if turn.Interleaved {
		t.vectors *= 2
	}
	if t.rest > 0 {
		t.restCos, t.restSin = &turn.Cos[whole], &turn.Sin[whole]
	}
	if whole > 0 {
		t.cos, t.sin = table(v, g.dt, turn, whole, space)
	}
	return t, v
}

// pairs returns the number of pairs that the assembly rotates at a time.
func (v isa) pairs() int {
	if v == avx512 {
		return 32
	}
	return 16
}

// table returns the cosines and sines of the first n pairs in the order of the
// vectors.
func table(v isa, dt DType, turn Turn, n int, space []float32) (cos, sin *float32) {
	switch {
	case dt == BF16 && turn.Interleaved:
		c, s := halves(space, n)
		for i := range n {
			c[i], s[i] = plainNaN(turn.Cos[i]), plainNaN(turn.Sin[i])
		}
		return &c[0], &s[0]
	case dt == BF16:
		c, s := halves(space, n)
		step := v.pairs()
		for i := 0; i < n; i += step {
			evenFirst(c[i:][:step], turn.Cos[i:][:step])
			evenFirst(s[i:][:step], turn.Sin[i:][:step])
		}
		return &c[0], &s[0]
	case turn.Interleaved: // x*cos + y*-sin beside y*cos + x*sin
		c, s := halves(space, 2*n)
		for i := range n {
			c[2*i], c[2*i+1] = turn.Cos[i], turn.Cos[i]
			s[2*i], s[2*i+1] = -turn.Sin[i], turn.Sin[i]
		}
		return &c[0], &s[0]
	}
	return &turn.Cos[0], &turn.Sin[0]
}

func halves(space []float32, n int) (a, b []float32) {
	if len(space) < 2*n {
		space = make([]float32, 2*n)
	}
	return space[:n], space[n:][:n]
}

// evenFirst moves the numbers in even places before those in odd ones.
func evenFirst(dst, src []float32) {
	even, odd := dst[:len(dst)/2], dst[len(dst)/2:]
	for i := range even {
		even[i], odd[i] = plainNaN(src[2*i]), plainNaN(src[2*i+1])
	}
}

// plainNaN clears the lower half of a NaN, since the vectors round it as if it
// were a number.
func plainNaN(v float32) float32 {
	if v != v {
		return float32(math.NaN())
	}
	return v
}

// move processes the rows in batches.
func (t turning) move(v isa, dst, src []byte, g grid, interleaved bool) {
	if g.heads > 1 && (g.rowStride == g.heads*g.headStride || g.rows == 1) { // all heads at one stride
		g.rows, g.heads, g.rowStride = g.rows*g.heads, 1, g.headStride
	}
	t.dstStride, t.srcStride = g.rowStride, g.rowBytes()
	t.batch = max(1, batchBytes/g.headBytes())
	rows := max(1, callBytes/g.rowBytes())
	for r := 0; r < g.rows; r += rows {
		for h := range g.heads {
			t.items = min(rows, g.rows-r)
			t.dst, t.src = &dst[r*g.rowStride+h*g.headStride], &src[r*g.rowBytes()+h*g.headBytes()]
			t.call(v, g.dt, interleaved)
		}
	}
}

// call dispatches by name: through a function value t would escape to the heap.
func (t *turning) call(v isa, dt DType, interleaved bool) {
	switch {
	case v == avx512 && interleaved:
		t.callPairsAVX512(dt)
	case v == avx512:
		t.callHalvesAVX512(dt)
	case interleaved:
		t.callPairsAVX2(dt)
	default:
		t.callHalvesAVX2(dt)
	}
}

func (t *turning) callPairsAVX2(dt DType) {
	switch dt {
	case F32:
		turnPairsF32AVX2(t)
	case F16:
		turnPairsF16AVX2(t)
	case BF16:
		turnPairsBF16AVX2(t)
	}
}

func (t *turning) callPairsAVX512(dt DType) {
	switch dt {
	case F32:
		turnPairsF32AVX512(t)
	case F16:
		turnPairsF16AVX512(t)
	case BF16:
		turnPairsBF16AVX512(t)
	}
}

func (t *turning) callHalvesAVX2(dt DType) {
	switch dt {
	case F32:
		turnHalvesF32AVX2(t)
	case F16:
		turnHalvesF16AVX2(t)
	case BF16:
		turnHalvesBF16AVX2(t)
	}
}

func (t *turning) callHalvesAVX512(dt DType) {
	switch dt {
	case F32:
		turnHalvesF32AVX512(t)
	case F16:
		turnHalvesF16AVX512(t)
	case BF16:
		turnHalvesBF16AVX512(t)
	}
}
