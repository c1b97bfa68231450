package enginekernel

import (
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Buffer holds the rows of recent tokens next to the states of some value heads that share
// a key head (KVBuffer §3). Decoding reads a state and the rows. A state is written only
// when rows are flushed into it. The caller owns the memory:
//
//	K  [capacity, DK]           keys of Type
//	U  [capacity, Heads, DV]    delta values of Type
//	G  [capacity, Heads], or [capacity, Heads, DK] when Decay is Diagonal
//
// F32 rows are aligned to four bytes. The contents of row N and later rows are undefined.
// Each row follows the previous one, or with DecodeTree any earlier row: see Parent. Only
// one goroutine may use a Buffer at a time.
type Buffer struct {
	DK, DV, Heads int
	Type          kernel.DType      // of K and U
	Decay         kernel.Transition // Scalar or Diagonal, also if T is dense: for the delta rule, U has the rest of T
	Delta         bool              // delta rule: what the state returns for a key is subtracted from its value
	K, U          []byte
	G             []float32
	N             int // number of pending rows

	parents []int32 // parent of each pending row; nil if each row follows the previous one
}

// NewBuffer returns an empty buffer with newly allocated memory.
func NewBuffer(dk, dv, heads, capacity int, t kernel.DType, decay kernel.Transition, delta bool) *Buffer {
	b := &Buffer{DK: dk, DV: dv, Heads: heads, Type: t, Decay: decay, Delta: delta}
	// Numbers rather than bytes, so that F32 is aligned.
	b.K = bytesOf(make([]float32, (capacity*dk*t.Size()+3)/4))[:capacity*dk*t.Size()]
	b.U = bytesOf(make([]float32, (capacity*heads*dv*t.Size()+3)/4))[:capacity*heads*dv*t.Size()]
	b.G = make([]float32, capacity*b.decays())
	return b
}

// Input is one row of an engine's projections, for the heads of a Buffer.
type Input struct {
	Q, K []float32 // normalised and rotated as the recurrence reads them
	V    []float32 // [Heads, DV]
	G    []float32 // decays, in the form of a row of Buffer.G
	Beta []float32 // write strengths [Heads]
	// E [Heads, DK] is used by a delta rule with gates per channel (Gated DeltaNet-2, arXiv
	// 2605.22791): the states are read with E instead of K. nil means K.
	E []float32
}

// reader returns the vector with which a delta rule reads the state of head h.
func (t *Input) reader(h, dk int) []float32 {
	if t.E == nil {
		return t.K
	}
	return t.E[h*dk:][:dk]
}

// Capacity returns the number of rows for which there is memory.
func (b *Buffer) Capacity() int { return len(b.G) / b.decays() }

// Grown returns a buffer of larger capacity with the same rows.
func (b *Buffer) Grown(capacity int) *Buffer {
	if capacity < b.N {
		panic(fmt.Sprintf("enginekernel: %d rows in a buffer of %d", b.N, capacity))
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

// Row returns pending row i in place: its decays, its key, and the delta values of all
// heads.
func (b *Buffer) Row(i int) (g []float32, k, u []byte) {
	return b.G[i*b.decays():][:b.decays()], b.K[i*b.keyBytes():][:b.keyBytes()], b.U[i*b.valueBytes():][:b.valueBytes()]
}

// decays returns the numbers in a row of G.
func (b *Buffer) decays() int { return b.Heads * b.headDecays() }

func (b *Buffer) headDecays() int {
	if b.Decay == kernel.Diagonal {
		return b.DK
	}
	return 1
}

func (b *Buffer) keyBytes() int   { return b.DK * b.Type.Size() }
func (b *Buffer) valueBytes() int { return b.Heads * b.DV * b.Type.Size() }

// Traffic has the bytes that an operation reads from and writes to memory. Each byte counts
// once, because repeated accesses hit the cache.
type Traffic struct {
	StateRead, StateWritten int
	RowsRead, RowsWritten   int // keys, delta values and decays
}

// Moved returns the sum of all bytes.
func (t Traffic) Moved() int { return t.StateRead + t.StateWritten + t.RowsRead + t.RowsWritten }

// Traffic returns the bytes that Decode moves for the given number of rows, for all heads
// together. If state is true, Decode reads states. If flush is true, it also writes them.
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

// BufferScratch is the working memory of Decode and Flush. Each worker needs one. The zero
// value is ready and grows as needed.
type BufferScratch struct {
	k, u   []float32 // keys and delta values of the rows, as F32
	kw     []float32 // keys times the decays of later rows
	qk, kk []float32 // products of queries (qk) and keys (kk) with the keys of earlier rows
	x, y   []float32 // qk and kk of one row, times the decays since
	d      []float32 // one decay, or one for each of DK key channels
	left   []float32 // queries and keys with which the state is read
	base   []float32 // results of these reads
	own    []float32 // delta value of a row
	paths  []int32   // ancestors of the decoded rows, if the rows branch
	spans  []int     // start and end of each row's path
	first  []int32   // 0, 1, 2, ...: the path of rows that do not branch
	chains bool      // the rows do not branch
}

// Decode computes the outputs [len(in), Heads, DV] of consecutive rows and appends the rows
// (the chunkwise form: KVBuffer Eq. 4, 7 and 16). It reads the states [Heads, DK, DV] once,
// for any number of rows. If states is nil they are zero, and only rows are read: the
// parallel form. If flush is set, the rows are then added to the states, which are in cache
// by then. With a capacity of one that is the recurrent form.
//
// Rows store keys and delta values rounded to Type. The outputs of a row are computed
// before the row is rounded. Wrong lengths panic, and so do more rows than the capacity
// allows. If sc is nil, Decode allocates.
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
		kernel.FromF32(b.K[(first+i)*b.keyBytes():][:b.keyBytes()], in[i].K, b.Type)
		copy(b.G[(first+i)*b.decays():], in[i].G)
	}
	b.N += len(in)
	// The buffered rows are many short runs of bytes, which no hardware prefetcher
	// predicts. They are fetched while the first state is read.
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
		if b.Decay == kernel.Scalar && (h == 0 || in[0].E != nil) {
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

// Flush adds all rows to the states [Heads, DK, DV] (KVBuffer Eq. 5). Decode with flush
// does the same while the states are still in cache.
func (b *Buffer) Flush(states []float32, sc *BufferScratch) {
	b.FlushFirst(states, b.N, sc)
}

// FlushFirst adds the first n rows to the states and keeps the other rows. All kept rows
// must descend from row n-1, so that all branches start from the new states. An example is
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
	if b.DK <= 0 || b.DV <= 0 || b.Heads <= 0 || b.Type.Size() == 0 || b.Decay != kernel.Scalar && b.Decay != kernel.Diagonal {
		panic(fmt.Sprintf("enginekernel: buffer of %d heads [%d, %d] of type %d, decay %d", b.Heads, b.DK, b.DV, b.Type, b.Decay))
	}
	c := b.Capacity()
	if b.N < 0 || b.N+len(in) > c || len(b.K) < c*b.keyBytes() || len(b.U) < c*b.valueBytes() {
		panic(fmt.Sprintf("enginekernel: %d and %d rows in a buffer of %d, %d bytes of keys, %d of values", b.N, len(in), c, len(b.K), len(b.U)))
	}
	if len(states) != b.Heads*b.DK*b.DV && (states != nil || flush) {
		panic(fmt.Sprintf("enginekernel: %d numbers as %d states [%d, %d]", len(states), b.Heads, b.DK, b.DV))
	}
	if len(out) != len(in)*b.Heads*b.DV {
		panic(fmt.Sprintf("enginekernel: %d outputs of %d rows and %d heads of %d", len(out), len(in), b.Heads, b.DV))
	}
	for i := range in {
		t := &in[i]
		if len(t.Q) != b.DK || len(t.K) != b.DK || len(t.V) != b.Heads*b.DV || len(t.G) != b.decays() || len(t.Beta) != b.Heads ||
			(t.E == nil) != (in[0].E == nil) || t.E != nil && len(t.E) != b.Heads*b.DK {
			panic(fmt.Sprintf("enginekernel: row %d has %d, %d, %d, %d and %d numbers for %d heads [%d, %d]",
				i, len(t.Q), len(t.K), len(t.V), len(t.G), len(t.Beta), b.Heads, b.DK, b.DV))
		}
	}
}

// keys returns the keys of all rows as F32 [N, DK].
func (b *Buffer) keys(sc *BufferScratch) []float32 {
	n := b.N * b.DK
	if b.Type == kernel.F32 {
		return floatsOf(b.K)[:n]
	}
	grow(&sc.k, n)
	kernel.ToF32(sc.k[:n], b.K, b.Type)
	return sc.k[:n]
}

// values returns the delta values of head h for the first n rows as F32, and the stride in
// numbers.
func (b *Buffer) values(h, n int, sc *BufferScratch) (u []float32, step int) {
	if b.Type == kernel.F32 {
		return floatsOf(b.U)[h*b.DV:], b.Heads * b.DV
	}
	grow(&sc.u, n*b.DV)
	for i := range n {
		off := i*b.valueBytes() + h*b.DV*b.Type.Size()
		kernel.ToF32(sc.u[i*b.DV:][:b.DV], b.U[off:], b.Type)
	}
	return sc.u, b.DV
}

// decay returns the decay of head h in row i.
func (b *Buffer) decay(h, i int) []float32 {
	n := b.headDecays()
	return b.G[i*b.decays()+h*n:][:n]
}

// multiply fills sc.qk and sc.kk [len(in), N]. They get the products of each new row's
// query and key with the keys of all earlier rows. All heads share the results, unless each
// head reads with its own vector (Input.E).
func (b *Buffer) multiply(h int, keys []float32, first int, in []Input, sc *BufferScratch) {
	grow(&sc.qk, len(in)*b.N)
	grow(&sc.kk, len(in)*b.N)
	for i := range in {
		n := first + i
		dotRows(sc.qk[i*b.N:][:n], sc.kk[i*b.N:][:n], in[i].Q, in[i].reader(h, b.DK), keys, b.DK)
	}
}

// readBase reads a state with the queries of all new rows and, for the delta rule, with
// their keys. The results are in sc.base, which is [2, len(in), DV].
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
		kernel.Gemm(sc.base, b.DV, sc.left, b.DK, state, b.DV, 2*m, b.DV, b.DK)
	default:
		kernel.Gemm(o, b.DV, q, b.DK, state, b.DV, m, b.DV, b.DK)
	}
}

// The method row computes the output of the i-th of m new rows, which becomes row n of the
// buffer. It also writes the delta value of this row.
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
	kernel.Axpy(o, dot(t.Q, t.K), own)
	kernel.FromF32(b.U[n*b.valueBytes()+h*b.DV*b.Type.Size():], own, b.Type)
}

// weighted returns the weights with which row n reads each of its ancestors, by its query
// (x) and by its key (y). A weight is the product with the ancestor's key, times the decays
// since that ancestor.
func (b *Buffer) weighted(h, n, i int, path []int32, keys []float32, t *Input, sc *BufferScratch) (x, y []float32) {
	grow(&sc.x, len(path))
	grow(&sc.y, len(path))
	x, y = sc.x[:len(path)], sc.y[:len(path)]
	w := b.ones(sc)
	times(w, b.decay(h, n))
	if b.Decay == kernel.Diagonal {
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

// weightedKeys returns the keys [len(path), DK] of the rows in path, each times the decays
// of the rows after it. On entry w has the decays after the last row; on return it has the
// decays of all rows too.
func (b *Buffer) weightedKeys(h int, path []int32, w, keys []float32, sc *BufferScratch) []float32 {
	grow(&sc.kw, len(path)*b.DK)
	for j := len(path) - 1; j >= 0; j-- {
		r := int(path[j])
		to, k, d := sc.kw[j*b.DK:][:b.DK], keys[r*b.DK:][:b.DK], b.decay(h, r)
		if b.Decay == kernel.Diagonal {
			carried(to, w, d, k)
			continue
		}
		scaled(to, w[0], k)
		w[0] *= d[0]
	}
	return sc.kw[:len(path)*b.DK]
}

// flushRows adds the first n rows to a head's state. Each of them must follow the previous
// one.
func (b *Buffer) flushRows(h, n int, state, keys []float32, sc *BufferScratch) {
	w := b.ones(sc)
	kw := b.weightedKeys(h, sc.chain(n), w, keys, sc)
	u, step := b.values(h, n, sc)
	if b.Decay == kernel.Scalar {
		for i := range sc.d[:b.DK] {
			sc.d[i] = w[0]
		}
	}
	addRankOnes(state, b.DV, b.DV, sc.d[:b.DK], kw, b.DK, u, step, n)
}

// ones sets sc.d to decays of 1 and returns it.
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

// weigh computes y = d*x. d has one number for all of x, or one for each.
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
