package kernel

import "math"

// turning describes items (heads) that are copied with the same rotation. The assembly
// depends on this layout; it advances dst and src up to the last batch. All sizes are in
// bytes, except counts.
type turning struct {
	dst, src         *byte
	cos, sin         *float32 // in the order in which vectors use them
	restCos, restSin *float32 // of the pairs after the last vector, in the order of pairs

	items, batch         int // items left, which the assembly counts down, and items per batch
	_                    int // items of this batch, for the assembly
	dstStride, srcStride int
	headBytes            int
	half                 int // distance from x to y of a pair
	vectors              int // bytes of x that whole vectors cover
	rest                 int // number of pairs after the last vector
	copyFrom             int // start of the numbers that are not rotated
}

const (
	// batchBytes bounds a batch of items. The assembly processes a batch once for every run
	// of dimensions. Batches of 4 KiB or more are slower (measured), because loads then
	// wait for earlier stores whose addresses end in the same 12 bits.
	batchBytes = 2 << 10
	// callBytes bounds the work of one call of assembly, which the scheduler cannot
	// interrupt.
	callBytes = 256 << 10
)

// smallTable is the number of cosines and sines that need no allocation: enough for 256
// dimensions.
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

// prepared sets everything in a turning except the memory to work on. It also returns the
// instruction set to use. AVX-512 is used only if its vectors cover the pairs without a
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

// table returns the cosines and sines of the first n pairs, in the order in which vectors
// use them.
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
	case turn.Interleaved: // x*cos + y*-sin and y*cos + x*sin are computed side by side
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

// evenFirst copies src to dst, first the numbers at even indexes and then those at odd
// indexes.
func evenFirst(dst, src []float32) {
	even, odd := dst[:len(dst)/2], dst[len(dst)/2:]
	for i := range even {
		even[i], odd[i] = plainNaN(src[2*i]), plainNaN(src[2*i+1])
	}
}

// plainNaN clears the lower half of a NaN, because the vectors would round it like a
// number.
func plainNaN(v float32) float32 {
	if v != v {
		return float32(math.NaN())
	}
	return v
}

// move rotates all rows, in calls of at most callBytes.
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

// call calls the assembly by name. With a function value, t would escape to the heap.
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
