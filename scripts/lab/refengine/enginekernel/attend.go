package enginekernel

import (
	"fmt"
	"math"
	"sort"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Attention is the shape of causal softmax attention that reads keys and values in place.
// One call serves one head of keys and values, and all query heads that share it.
type Attention struct {
	Group            int // query heads that share a head of keys and values
	KeyDim, ValueDim int
	Type             kernel.DType // of keys and values
}

// Run is a run of consecutive rows, read in place. Row i has its keys [KV heads, KeyDim] at
// byte i*KStride of K, and its values [KV heads, ValueDim] at byte i*VStride of V. Several
// calls with different queries may read a run at once.
type Run struct {
	K, V             []byte
	KStride, VStride int
	Rows             int
	Begin            int // position of the first row
	// Turn is the rotation that the keys lack. The keys of a cached chunk are rotated as if
	// it began at position 0; if it is placed at p, Turn has the angles of p. Attend does
	// not rotate the keys. It rotates each query once per run by the inverse, which gives
	// the same product: (R(p) k)·q = k·(R(-p) q), where R(p) is the rotation by the angles
	// of p. Dims 0 means that the keys are final.
	Turn kernel.Turn
}

// Queries has rows of query heads at consecutive positions. They are scaled, and rotated to
// their positions. Head g of row r is Q[r*LD+g*KeyDim:][:KeyDim].
type Queries struct {
	Q     []float32
	LD    int
	Rows  int
	Begin int // position of the first row
}

// AttendScratch is the working memory of Attend. Each worker needs one. The zero value is
// ready and grows as needed.
type AttendScratch struct {
	q, turned []float32 // [rows*Group, KeyDim]
	scores    []float32 // [rows*Group, tile]
	acc       []float32 // [rows*Group, ValueDim]
	// top and sum are the running maximum of the scores and the running sum of the weights,
	// for each query head.
	top, sum []float32
	k, v     []float32 // a tile of keys and values, as F32
	at       []int     // positions of the tile's rows
}

const (
	// attendTile bounds the keys of one product, so that the product's scores stay in the
	// second-level cache.
	attendTile = 256
	// A product reads the F32 rows of a run in place if the run has at least attendInPlace
	// rows. Shorter runs are first copied next to other rows (guessed).
	attendInPlace = 64
)

// Attend computes the attention of all queries over one head of keys and values. It writes
// the output of head g of row r to out[r*ldo+g*ValueDim:][:ValueDim]. A query row sees the
// key rows of all runs up to its own position. A query row that sees none gets zeros. Runs
// must ascend by position.
//
// Attend computes the softmax in one pass over the runs, with a running maximum and sum. It
// widens keys and values to F32 and multiplies as Gemm does, so a row's output depends only
// on the runs and on its own query. Wrong sizes panic. If sc is nil, Attend allocates.
func (a *Attention) Attend(out []float32, ldo int, q Queries, runs []Run, head int, sc *AttendScratch) {
	a.check(out, ldo, &q, runs, head)
	if sc == nil {
		sc = new(AttendScratch)
	}
	if q.Rows == 0 {
		return
	}
	w := attending{Attention: a, AttendScratch: sc, queries: q}
	w.begin()
	w.placed(runs, head)
	for i := range runs {
		if runs[i].Turn.Dims > 0 {
			w.short(&runs[i], head)
		}
	}
	w.finish(out, ldo)
}

func (a *Attention) check(out []float32, ldo int, q *Queries, runs []Run, head int) {
	size := a.Type.Size()
	if a.Group < 1 || a.KeyDim < 1 || a.ValueDim < 1 || size == 0 || head < 0 {
		panic(fmt.Sprintf("enginekernel: attention of %+v, head %d", *a, head))
	}
	checkMatrix("queries", q.Q, q.LD, q.Rows, a.Group*a.KeyDim)
	checkMatrix("outputs", out, ldo, q.Rows, a.Group*a.ValueDim)
	last := math.MinInt
	for i := range runs {
		r := &runs[i]
		k, v := (head+1)*a.KeyDim*size, (head+1)*a.ValueDim*size
		if r.Rows < 0 || r.KStride < k || r.VStride < v || r.Rows > 0 && (len(r.K) < (r.Rows-1)*r.KStride+k || len(r.V) < (r.Rows-1)*r.VStride+v) {
			panic(fmt.Sprintf("enginekernel: run %d of %d rows %d and %d bytes apart in %d and %d, head %d of %+v",
				i, r.Rows, r.KStride, r.VStride, len(r.K), len(r.V), head, *a))
		}
		if r.Begin < last {
			panic(fmt.Sprintf("enginekernel: run %d begins at %d, the one before ends at %d", i, r.Begin, last))
		}
		last = r.Begin + r.Rows
		checkTurn(r.Turn, a.KeyDim)
	}
}

// lines is a row-major matrix with ld numbers from row to row.
type lines struct {
	v  []float32
	ld int
}

// attending is the state of one call of Attend.
type attending struct {
	*Attention
	*AttendScratch
	queries Queries
	n       int // number of queries, one for each row and head
}

func (w *attending) begin() {
	q := &w.queries
	w.n = q.Rows * w.Group
	grow(&w.q, w.n*w.KeyDim)
	grow(&w.acc, w.n*w.ValueDim)
	grow(&w.top, w.n)
	grow(&w.sum, w.n)
	grow(&w.scores, w.n*attendTile)
	for r := range q.Rows {
		copy(w.q[r*w.Group*w.KeyDim:][:w.Group*w.KeyDim], q.Q[r*q.LD:])
	}
	clear(w.acc[:w.n*w.ValueDim])
	clear(w.sum[:w.n])
	for i := range w.top[:w.n] {
		w.top[i] = float32(math.Inf(-1))
	}
}

func (w *attending) finish(out []float32, ldo int) {
	width := w.Group * w.ValueDim
	for r := range w.queries.Rows {
		for g := range w.Group {
			i := r*w.Group + g
			inv := float32(0)
			if w.sum[i] > 0 {
				inv = 1 / w.sum[i]
			}
			o := out[r*ldo+g*w.ValueDim:][:w.ValueDim]
			for j, x := range w.acc[r*width+g*w.ValueDim:][:w.ValueDim] {
				o[j] = x * inv
			}
		}
	}
}

// The method placed processes the runs with final keys. It reads long F32 runs in place and
// copies the rows of other runs together into tiles.
func (w *attending) placed(runs []Run, head int) {
	w.at = w.at[:0]
	for i := range runs {
		r := &runs[i]
		if r.Turn.Dims > 0 {
			continue
		}
		if w.Type == kernel.F32 && w.rows(r) >= attendInPlace && aligned(r) {
			w.direct(r, head)
			continue
		}
		for lo := 0; lo < w.rows(r); {
			lo += w.widen(r, head, lo)
			if len(w.at) == attendTile {
				w.tile(w.q)
			}
		}
	}
	w.tile(w.q)
}

// The method short processes a run whose keys lack the rotation r.Turn.
func (w *attending) short(r *Run, head int) {
	if w.rows(r) == 0 {
		return
	}
	grow(&w.turned, w.n*w.KeyDim)
	for i := range w.n {
		turnBack(w.turned[i*w.KeyDim:][:w.KeyDim], w.q[i*w.KeyDim:], r.Turn)
	}
	for lo := 0; lo < w.rows(r); {
		lo += w.widen(r, head, lo)
		w.tile(w.turned)
	}
}

// rows returns the number of rows of a run that some query sees. The contents of later rows
// may be undefined.
func (w *attending) rows(r *Run) int {
	return max(0, min(r.Rows, w.queries.Begin+w.queries.Rows-r.Begin))
}

func aligned(r *Run) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(r.K))) | uintptr(unsafe.Pointer(unsafe.SliceData(r.V)))
	return (at|uintptr(r.KStride)|uintptr(r.VStride))%4 == 0
}

// The method direct processes rows of F32 in place.
func (w *attending) direct(r *Run, head int) {
	k, v := floatsOf(r.K)[head*w.KeyDim:], floatsOf(r.V)[head*w.ValueDim:]
	ldk, ldv := r.KStride/4, r.VStride/4
	for lo := 0; lo < w.rows(r); lo += attendTile {
		n, first := min(attendTile, w.rows(r)-lo), r.Begin+lo
		w.add(w.q, lines{k[lo*ldk:], ldk}, lines{v[lo*ldv:], ldv}, n, func(at int) int { return at + 1 - first })
	}
}

// widen appends rows of a run to the tile, beginning with row lo. It returns how many rows
// fit.
func (w *attending) widen(r *Run, head, lo int) int {
	grow(&w.k, attendTile*w.KeyDim)
	grow(&w.v, attendTile*w.ValueDim)
	size, have := w.Type.Size(), len(w.at)
	n := min(w.rows(r)-lo, attendTile-have)
	widenRows(w.k[have*w.KeyDim:], r.K[lo*r.KStride+head*w.KeyDim*size:], r.KStride, n, w.KeyDim, w.Type)
	widenRows(w.v[have*w.ValueDim:], r.V[lo*r.VStride+head*w.ValueDim*size:], r.VStride, n, w.ValueDim, w.Type)
	for i := range n {
		w.at = append(w.at, r.Begin+lo+i)
	}
	return n
}

func widenRows(dst []float32, src []byte, stride, rows, cols int, t kernel.DType) {
	if stride == cols*t.Size() {
		kernel.ToF32(dst[:rows*cols], src, t)
		return
	}
	for i := range rows {
		kernel.ToF32(dst[i*cols:][:cols], src[i*stride:], t)
	}
}

// tile processes the rows in the tile and empties it.
func (w *attending) tile(q []float32) {
	if n := len(w.at); n > 0 {
		at := w.at
		w.add(q, lines{w.k, w.KeyDim}, lines{w.v, w.ValueDim}, n, func(pos int) int { return sort.SearchInts(at, pos+1) })
	}
	w.at = w.at[:0]
}

// The method add processes n keys and values. The function seen gets the position of a
// query and returns how many of the n keys this query sees.
func (w *attending) add(q []float32, k, v lines, n int, seen func(at int) int) {
	s := w.scores[:w.n*n]
	clear(s)
	kernel.GemmNT(s, n, q, w.KeyDim, k.v, k.ld, w.n, n, w.KeyDim)
	for i := range w.n {
		row := s[i*n:][:n]
		visible := max(0, min(n, seen(w.queries.Begin+i/w.Group)))
		clear(row[visible:])
		if visible > 0 {
			SoftmaxStep(row[:visible], &w.top[i], &w.sum[i], w.acc[i*w.ValueDim:][:w.ValueDim])
		}
	}
	kernel.Gemm(w.acc, w.ValueDim, s, n, v.v, v.ld, w.n, w.ValueDim, n)
}

// turnBack writes src rotated by the inverse of t.
func turnBack(dst, src []float32, t kernel.Turn) {
	for i, c := range t.Cos {
		p, q := pair(i, t.Dims, t.Interleaved)
		x, y, s := src[p], src[q], t.Sin[i]
		dst[p], dst[q] = x*c+y*s, y*c-x*s
	}
	copy(dst[t.Dims:], src[t.Dims:len(dst)])
}

// SoftmaxStep continues a softmax with the scores s. It replaces s by weights relative to
// the running maximum top, and adds the weights to the running sum. If s has a new maximum,
// SoftmaxStep first rescales sum and out to it.
func SoftmaxStep(s []float32, top, sum *float32, out []float32) {
	peak := *top
	for _, x := range s {
		if x > peak {
			peak = x
		}
	}
	if peak > *top {
		fade := [1]float32{*top - peak}
		Exp(fade[:])
		for j := range out {
			out[j] *= fade[0]
		}
		*sum *= fade[0]
		*top = peak
	}
	*sum = expSum(s, peak, *sum)
}
