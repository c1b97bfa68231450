package kernel

import (
	"fmt"
	"unsafe"
)

// Buffer holds recent rows next to the states of some value heads that share a
// key head (KVBuffer §3). Decoding reads a state and the rows; a state is
// written only when rows are flushed into it. The caller owns the memory:
//
//	K  [capacity, DK]           keys of Type
//	U  [capacity, Heads, DV]    delta values of Type
//	G  [capacity, Heads], or [capacity, Heads, DK] when Decay is Diagonal
//
// F32 rows are aligned to four bytes. The rows at N and after are undefined.
// Rows are a chain, or with DecodeTree a tree: see Parent. A Buffer is for one
// goroutine at a time.
type Buffer struct {
	DK, DV, Heads int
	Type          DType      // of K and U
	Decay         Transition // Scalar or Diagonal, whatever T is: the delta rule is in U
	Delta         bool       // delta rule: values are corrected by what the state returns
	K, U          []byte
	G             []float32
	N             int // rows pending

	parents []int32 // of each pending row; nil if they are a chain
}

// NewBuffer returns an empty buffer with newly allocated memory.
func NewBuffer(dk, dv, heads, capacity int, t DType, decay Transition, delta bool) *Buffer {
	b := &Buffer{DK: dk, DV: dv, Heads: heads, Type: t, Decay: decay, Delta: delta}
	// Numbers rather than bytes, so that F32 is aligned.
	b.K = bytesOf(make([]float32, (capacity*dk*t.Size()+3)/4))[:capacity*dk*t.Size()]
	b.U = bytesOf(make([]float32, (capacity*heads*dv*t.Size()+3)/4))[:capacity*heads*dv*t.Size()]
	b.G = make([]float32, capacity*b.decays())
	return b
}

// Input is one row of an engine's projections, for the heads of a buffer.
type Input struct {
	Q, K []float32 // normalised and rotated as the recurrence reads them
	V    []float32 // [Heads, DV]
	G    []float32 // as a row of Buffer.G
	Beta []float32 // write strengths [Heads]
	// E [Heads, DK] replaces K when a delta rule with gates per channel reads
	// the states (Gated DeltaNet-2, arXiv 2605.22791); nil = K.
	E []float32
}

// reader returns the vector with which a delta rule reads a head's state.
func (t *Input) reader(h, dk int) []float32 {
	if t.E == nil {
		return t.K
	}
	return t.E[h*dk:][:dk]
}

// Capacity returns the number of rows for which there is memory.
func (b *Buffer) Capacity() int { return len(b.G) / b.decays() }

// Grown returns the same rows in a buffer of larger capacity.
func (b *Buffer) Grown(capacity int) *Buffer {
	if capacity < b.N {
		panic(fmt.Sprintf("kernel: %d rows in a buffer of %d", b.N, capacity))
	}
	out := NewBuffer(b.DK, b.DV, b.Heads, capacity, b.Type, b.Decay, b.Delta)
	copy(out.K, b.K[:b.N*b.keyBytes()])
	copy(out.U, b.U[:b.N*b.valueBytes()])
	copy(out.G, b.G[:b.N*b.decays()])
	if out.N = b.N; b.parents != nil {
		out.parents = append(make([]int32, 0, capacity), b.parents...)
	}
	return out
}

// Row returns a pending row in place: decays, key, and delta values of all
// heads.
func (b *Buffer) Row(i int) (g []float32, k, u []byte) {
	return b.G[i*b.decays():][:b.decays()], b.K[i*b.keyBytes():][:b.keyBytes()], b.U[i*b.valueBytes():][:b.valueBytes()]
}

// decays returns the numbers in a row of G.
func (b *Buffer) decays() int { return b.Heads * b.headDecays() }

func (b *Buffer) headDecays() int {
	if b.Decay == Diagonal {
		return b.DK
	}
	return 1
}

func (b *Buffer) keyBytes() int   { return b.DK * b.Type.Size() }
func (b *Buffer) valueBytes() int { return b.Heads * b.DV * b.Type.Size() }

// Traffic is the bytes that an operation reads from and writes to memory, each
// byte once: repeated accesses hit the cache.
type Traffic struct {
	StateRead, StateWritten int
	RowsRead, RowsWritten   int // keys, delta values and decays
}

// Moved returns the sum.
func (t Traffic) Moved() int { return t.StateRead + t.StateWritten + t.RowsRead + t.RowsWritten }

// Traffic returns the bytes that Decode of that many rows moves, for all heads
// together.
func (b *Buffer) Traffic(rows int, state, flush bool) Traffic {
	row := b.keyBytes() + b.valueBytes() + 4*b.decays()
	t := Traffic{RowsRead: b.N * row, RowsWritten: rows * row}
	if state {
		t.StateRead = 4 * b.Heads * b.DK * b.DV
	}
	if flush {
		t.StateWritten = 4 * b.Heads * b.DK * b.DV
	}
	return t
}

// BufferScratch is the working memory of Decode and Flush, one per worker. The
// zero value is ready, and grows.
type BufferScratch struct {
	k, u   []float32 // widened rows
	kw     []float32 // keys times the decays since
	qk, kk []float32 // products with the rows' keys
	x, y   []float32 // the same times the decays since
	d      []float32 // decays, one or DK of them
	left   []float32 // queries and keys to read the state with
	base   []float32 // their results
	own    []float32 // delta value of a row
	paths  []int32   // ancestors of the decoded rows, if rows branch
	spans  []int     // start and end of each row's path
	first  []int32   // 0, 1, 2, ...: paths of a chain
	chains bool      // paths are those of a chain
}

// Decode computes the outputs [len(in), Heads, DV] of consecutive rows and
// appends them: the chunkwise form (KVBuffer Eq. 4, 7 and 16). The states
// [Heads, DK, DV] are read once, for any number of rows. Without states (nil)
// they are zero and only rows are read: the parallel form. With flush the rows
// are then added to the states, which are in cache by then; with a capacity of
// one that is the recurrent form.
//
// Rows store keys and delta values rounded to Type; outputs of a row are
// computed before it is rounded. Too many rows for the capacity, and wrong
// lengths, panic. A nil sc allocates.
func (b *Buffer) Decode(states []float32, in []Input, out []float32, flush bool, sc *BufferScratch) {
	b.check(states, in, out, flush)
	if flush {
		b.checkFlush(b.N)
	}
	if b.parents != nil {
		for i := range in {
			b.parents = append(b.parents, int32(b.N+i-1))
		}
	}
	b.decode(states, in, out, flush, sc)
}

// decode does Decode for rows whose parents are set.
func (b *Buffer) decode(states []float32, in []Input, out []float32, flush bool, sc *BufferScratch) {
	if sc == nil {
		sc = new(BufferScratch)
	}
	if len(in) == 0 {
		return
	}
	first := b.N
	b.findPaths(first, len(in), sc)
	for i := range in {
		fromF32(b.K[(first+i)*b.keyBytes():][:b.keyBytes()], in[i].K, b.Type)
		copy(b.G[(first+i)*b.decays():], in[i].G)
	}
	b.N += len(in)
	// Rows are many short runs, which no hardware prefetcher predicts: they
	// are fetched while the first state is read.
	fetch(b.K[:first*b.keyBytes()])
	fetch(b.U[:first*b.valueBytes()])
	var keys []float32
	for h := range b.Heads {
		var state []float32
		if states != nil {
			state = states[h*b.DK*b.DV:][:b.DK*b.DV]
		}
		b.readBase(h, first, state, in, sc)
		if h == 0 {
			keys = b.keys(sc)
		}
		if b.Decay == Scalar && (h == 0 || in[0].E != nil) {
			b.multiply(h, keys, first, in, sc)
		}
		for i := range in {
			o := out[(i*b.Heads+h)*b.DV:][:b.DV]
			b.row(h, first+i, i, len(in), keys, &in[i], o, sc)
		}
		if flush {
			b.flushRows(h, b.N, state, keys, sc)
		}
	}
	if flush {
		b.N = 0
	}
}

// Flush adds all rows to the states [Heads, DK, DV] (KVBuffer Eq. 5). Decode
// with flush does the same while the states are in cache.
func (b *Buffer) Flush(states []float32, sc *BufferScratch) {
	b.FlushFirst(states, b.N, sc)
}

// FlushFirst flushes the first n rows; the others stay. All of them have to
// follow row n-1, so that all branches start from the resulting states, as with
// the shared start of beams.
func (b *Buffer) FlushFirst(states []float32, n int, sc *BufferScratch) {
	b.checkFlush(n)
	b.check(states, nil, nil, true)
	if sc == nil {
		sc = new(BufferScratch)
	}
	if n == 0 {
		return
	}
	keys := b.keys(sc)
	for h := range b.Heads {
		b.flushRows(h, n, states[h*b.DK*b.DV:][:b.DK*b.DV], keys, sc)
	}
	b.dropFirst(n)
}

func (b *Buffer) check(states []float32, in []Input, out []float32, flush bool) {
	if b.DK <= 0 || b.DV <= 0 || b.Heads <= 0 || b.Type.Size() == 0 || b.Decay != Scalar && b.Decay != Diagonal {
		panic(fmt.Sprintf("kernel: buffer of %d heads [%d, %d] of type %d, decay %d", b.Heads, b.DK, b.DV, b.Type, b.Decay))
	}
	c := b.Capacity()
	if b.N < 0 || b.N+len(in) > c || len(b.K) < c*b.keyBytes() || len(b.U) < c*b.valueBytes() {
		panic(fmt.Sprintf("kernel: %d and %d rows in a buffer of %d, %d bytes of keys, %d of values", b.N, len(in), c, len(b.K), len(b.U)))
	}
	if len(states) != b.Heads*b.DK*b.DV && (states != nil || flush) {
		panic(fmt.Sprintf("kernel: %d numbers as %d states [%d, %d]", len(states), b.Heads, b.DK, b.DV))
	}
	if len(out) != len(in)*b.Heads*b.DV {
		panic(fmt.Sprintf("kernel: %d outputs of %d rows and %d heads of %d", len(out), len(in), b.Heads, b.DV))
	}
	for i := range in {
		t := &in[i]
		if len(t.Q) != b.DK || len(t.K) != b.DK || len(t.V) != b.Heads*b.DV || len(t.G) != b.decays() || len(t.Beta) != b.Heads ||
			(t.E == nil) != (in[0].E == nil) || t.E != nil && len(t.E) != b.Heads*b.DK {
			panic(fmt.Sprintf("kernel: row %d has %d, %d, %d, %d and %d numbers for %d heads [%d, %d]",
				i, len(t.Q), len(t.K), len(t.V), len(t.G), len(t.Beta), b.Heads, b.DK, b.DV))
		}
	}
}

// keys returns all rows' keys as F32 [N, DK].
func (b *Buffer) keys(sc *BufferScratch) []float32 {
	n := b.N * b.DK
	if b.Type == F32 {
		return floatsOf(b.K)[:n]
	}
	grow(&sc.k, n)
	toF32(sc.k[:n], b.K, b.Type)
	return sc.k[:n]
}

// values returns one head's delta values of the first n rows as F32, and their
// stride.
func (b *Buffer) values(h, n int, sc *BufferScratch) (u []float32, step int) {
	if b.Type == F32 {
		return floatsOf(b.U)[h*b.DV:], b.Heads * b.DV
	}
	grow(&sc.u, n*b.DV)
	for i := range n {
		off := i*b.valueBytes() + h*b.DV*b.Type.Size()
		toF32(sc.u[i*b.DV:][:b.DV], b.U[off:], b.Type)
	}
	return sc.u, b.DV
}

// decay returns one head's decay of row i.
func (b *Buffer) decay(h, i int) []float32 {
	n := b.headDecays()
	return b.G[i*b.decays()+h*n:][:n]
}

// multiply fills sc.qk and sc.kk [len(in), N] with the products of every row's
// query and key with the keys of all rows before it. Heads share them, unless
// they have separate readers.
func (b *Buffer) multiply(h int, keys []float32, first int, in []Input, sc *BufferScratch) {
	grow(&sc.qk, len(in)*b.N)
	grow(&sc.kk, len(in)*b.N)
	for i := range in {
		n := first + i
		dotRows(sc.qk[i*b.N:][:n], sc.kk[i*b.N:][:n], in[i].Q, in[i].reader(h, b.DK), keys, b.DK)
	}
}

// readBase reads a state with the queries and, for the delta rule, the keys of
// all rows: sc.base is [2, len(in), DV].
func (b *Buffer) readBase(h, first int, state []float32, in []Input, sc *BufferScratch) {
	m := len(in)
	grow(&sc.base, 2*m*b.DV)
	clear(sc.base[:2*m*b.DV])
	if state == nil {
		return
	}
	grow(&sc.left, 2*m*b.DK)
	d := b.ones(sc)
	for i := range in {
		if i == 0 || b.Parent(first+i) != first+i-1 {
			d = b.ones(sc)
			for _, r := range sc.path(i) {
				times(d, b.decay(h, int(r)))
			}
		}
		times(d, b.decay(h, first+i))
		weigh(sc.left[i*b.DK:][:b.DK], d, in[i].Q)
		if b.Delta {
			weigh(sc.left[(m+i)*b.DK:][:b.DK], d, in[i].reader(h, b.DK))
		}
	}
	o, mem := sc.base[:m*b.DV], sc.base[m*b.DV:][:m*b.DV]
	q, k := sc.left[:m*b.DK], sc.left[m*b.DK:][:m*b.DK]
	switch {
	case m == 1 && b.Delta:
		sumRows(o, mem, q, k, state, b.DV)
	case m == 1:
		sumRows(o, nil, q, nil, state, b.DV)
	case b.Delta:
		gemm(sc.base, b.DV, sc.left, b.DK, state, b.DV, 2*m, b.DV, b.DK)
	default:
		gemm(o, b.DV, q, b.DK, state, b.DV, m, b.DV, b.DK)
	}
}

// row computes the output of row i of m, number n of the buffer, and writes its
// delta value.
func (b *Buffer) row(h, n, i, m int, keys []float32, t *Input, o []float32, sc *BufferScratch) {
	copy(o, sc.base[i*b.DV:])
	mem := sc.base[(m+i)*b.DV:][:b.DV]
	path := sc.path(i)
	x, y := b.weighted(h, n, i, path, keys, t, sc)
	u, step := b.values(h, n, sc)
	for at := 0; at < len(path); {
		run := consecutive(path[at:])
		from := u[int(path[at])*step:]
		if b.Delta {
			sumRows(o, mem, x[at:at+run], y[at:at+run], from, step)
		} else {
			sumRows(o, nil, x[at:at+run], nil, from, step)
		}
		at += run
	}
	grow(&sc.own, b.DV)
	own, beta := sc.own[:b.DV], t.Beta[h]
	for j, v := range t.V[h*b.DV:][:b.DV] {
		own[j] = beta * (v - mem[j])
	}
	axpy(o, dot(t.Q, t.K), own)
	fromF32(b.U[n*b.valueBytes()+h*b.DV*b.Type.Size():], own, b.Type)
}

// weighted returns the weights with which row n reads each of its ancestors by
// its query and its key: their products with the ancestor's key, times the
// decays since then.
func (b *Buffer) weighted(h, n, i int, path []int32, keys []float32, t *Input, sc *BufferScratch) (x, y []float32) {
	grow(&sc.x, len(path))
	grow(&sc.y, len(path))
	x, y = sc.x[:len(path)], sc.y[:len(path)]
	w := b.ones(sc)
	times(w, b.decay(h, n))
	if b.Decay == Diagonal {
		dotRows(x, y, t.Q, t.reader(h, b.DK), b.weightedKeys(h, path, w, keys, sc), b.DK)
		return x, y
	}
	qk, kk := sc.qk[i*b.N:][:n], sc.kk[i*b.N:][:n]
	for j := len(path) - 1; j >= 0; j-- {
		r := path[j]
		x[j], y[j] = w[0]*qk[r], w[0]*kk[r]
		w[0] *= b.decay(h, int(r))[0]
	}
	return x, y
}

// weightedKeys returns the keys [len(path), DK] of some rows times the decays
// since them. w is the decays after the last row, and becomes those of all
// rows.
func (b *Buffer) weightedKeys(h int, path []int32, w, keys []float32, sc *BufferScratch) []float32 {
	grow(&sc.kw, len(path)*b.DK)
	for j := len(path) - 1; j >= 0; j-- {
		r := int(path[j])
		to, k, d := sc.kw[j*b.DK:][:b.DK], keys[r*b.DK:][:b.DK], b.decay(h, r)
		if b.Decay == Diagonal {
			carried(to, w, d, k)
			continue
		}
		scaled(to, w[0], k)
		w[0] *= d[0]
	}
	return sc.kw[:len(path)*b.DK]
}

// flushRows adds the first n rows, a chain, to a head's state.
func (b *Buffer) flushRows(h, n int, state, keys []float32, sc *BufferScratch) {
	w := b.ones(sc)
	kw := b.weightedKeys(h, sc.chain(n), w, keys, sc)
	u, step := b.values(h, n, sc)
	if b.Decay == Scalar {
		for i := range sc.d[:b.DK] {
			sc.d[i] = w[0]
		}
	}
	addRankOnes(state, b.DV, b.DV, sc.d[:b.DK], kw, b.DK, u, step, n)
}

// ones returns decays of 1, in sc.d.
func (b *Buffer) ones(sc *BufferScratch) []float32 {
	grow(&sc.d, b.DK)
	d := sc.d[:b.headDecays()]
	for i := range d {
		d[i] = 1
	}
	return d
}

// times computes d *= g.
func times(d, g []float32) {
	for i := range d {
		d[i] *= g[i]
	}
}

// weigh computes y = d*x, with one d for all or one each.
func weigh(y, d, x []float32) {
	if len(d) == 1 {
		scaled(y, d[0], x)
		return
	}
	for i, f := range d {
		y[i] = f * x[i]
	}
}

func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

func floatsOf(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
