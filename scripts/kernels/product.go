package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// peak generates a function that measures the multiply-add peak: it only does independent
// multiply-adds between registers.
func (g *gen) peak(accumulators int) {
	g.begin("peakFMA", "func(x, y *float32, rounds int)",
		fmt.Sprintf("does rounds of %d multiply-adds of the %d numbers at x and y, which are aligned.", accumulators, g.lanes))
	rounds, x, y := g.arg("rounds"), g.vector(), g.vector()
	g.VMOVUPS(at(g.arg("x"), 0), x)
	g.VMOVUPS(at(g.arg("y"), 0), y)
	acc := make([]reg.VecVirtual, accumulators)
	for i := range acc {
		acc[i] = g.vector()
		g.zero(acc[i])
	}
	g.Label("loop")
	for _, a := range acc {
		g.VFMADD231PS(x, y, a)
	}
	g.DECQ(rounds)
	g.JNZ(operand.LabelRef("loop"))
	g.end()
}

func (g *gen) zero(v reg.VecVirtual) {
	if g.lanes == 16 {
		g.VPXORD(v, v, v)
		return
	}
	g.VPXOR(v, v, v)
}

// products generates the tiles of D = C + A*B with the given numbers of rows, two vectors wide,
// and the function that copies B into panels of that width. The tile with the most rows also has
// a variant that copies B into a panel while it reads B.
func (g *gen) products(rows ...int) {
	for _, n := range rows {
		g.tile(n, false)
	}
	g.tile(rows[0], true)
	g.pack()
}

// The fields of type tile in the package, 8 bytes each, in this order.
const (
	fieldA = 8 * iota
	fieldB
	fieldC
	fieldD
	fieldPanel
	fieldAfter
	fieldAhead
	fieldLDA
	fieldLDB
	fieldLDC
	fieldLDD
	fieldStepA
	fieldStepB
	fieldStepC
	fieldStepD
	fieldStepPanel
	fieldK
	fieldCount
)

// tiling is the state of one tile function under construction.
type tiling struct {
	*gen
	t         reg.GPVirtual // *tile
	i         reg.GPVirtual // number of the current tile
	lda       reg.GPVirtual
	lines     []reg.GPVirtual // every third row of A
	b, panel  reg.GPVirtual   // where B is read, and written in the variant that keeps it
	nextC     reg.GPVirtual   // rows of C to prefetch
	ahead     reg.GPVirtual   // bytes to prefetch
	rows      int
	keepPanel bool
}

// tile generates a function that keeps rows x 2 vectors of D in registers while it iterates over
// k. It reads A row-major, number by number, and B two vectors per k.
//
// It prefetches the memory of the next tiles line by line, during the loop. Prefetching all at
// once would delay the loads of the current tile.
func (g *gen) tile(rows int, keepPanel bool) {
	name, doc := fmt.Sprintf("tile%dx%d", rows, 2*g.lanes), "computes t.count tiles, t.step* apart, each D = C + A*B."
	if keepPanel {
		name, doc = name+"Keep", "does the same and writes the rows of B that it reads to a panel, densely."
	}
	g.begin(name, "func(t *tile)", doc)
	x := &tiling{gen: g, t: g.arg("t"), i: g.GP64(), rows: rows, keepPanel: keepPanel}
	x.lda, x.ahead = x.field(fieldLDA), x.field(fieldAhead)
	g.XORQ(x.i, x.i)

	g.Label("tile")
	acc := x.load()
	x.point()
	x.b = x.present(fieldB, fieldStepB)
	if keepPanel {
		x.panel = x.present(fieldPanel, fieldStepPanel)
	}
	k := x.field(fieldK)
	g.SUBQ(operand.Imm(unroll), k)
	g.JL(operand.LabelRef("rest"))
	g.Label("many")
	x.fetch()
	x.steps(acc, unroll)
	g.SUBQ(operand.Imm(unroll), k)
	g.JGE(operand.LabelRef("many"))
	g.Label("rest")
	g.ADDQ(operand.Imm(unroll), k)
	g.JZ(operand.LabelRef("store"))
	g.Label("one")
	x.steps(acc, 1)
	g.DECQ(k)
	g.JNZ(operand.LabelRef("one"))

	g.Label("store")
	x.store(acc)
	g.INCQ(x.i)
	g.CMPQ(x.i, at(x.t, fieldCount))
	g.JLT(operand.LabelRef("tile"))
	g.end()
}

func (x *tiling) field(off int) reg.GPVirtual {
	r := x.GP64()
	x.MOVQ(at(x.t, off), r)
	return r
}

// present returns the start of the current tile in one operand. pointer and step are the offsets
// of two fields of the tile description: the operand's pointer, and its step per tile.
func (x *tiling) present(pointer, step int) reg.GPVirtual {
	r := x.GP64()
	x.MOVQ(at(x.t, step), r)
	x.IMULQ(x.i, r)
	x.ADDQ(at(x.t, pointer), r)
	return r
}

// load fills the accumulators from C and sets nextC to the C of the next tile.
func (x *tiling) load() [][2]reg.VecVirtual {
	c, ldc := x.present(fieldC, fieldStepC), x.field(fieldLDC)
	x.nextC = x.GP64()
	x.MOVQ(c, x.nextC)
	x.ADDQ(at(x.t, fieldStepC), x.nextC)
	last := x.GP64()
	x.LEAQ(at(x.i, 1), last)
	x.CMPQ(last, at(x.t, fieldCount))
	x.CMOVQEQ(at(x.t, fieldAfter), x.nextC)

	acc := make([][2]reg.VecVirtual, x.rows)
	for i := range acc {
		acc[i] = [2]reg.VecVirtual{x.vector(), x.vector()}
		x.VMOVUPS(at(c, 0), acc[i][0])
		x.VMOVUPS(at(c, x.vectorBytes()), acc[i][1])
		if i < x.rows-1 {
			x.ADDQ(ldc, c)
		}
	}
	return acc
}

// fetch prefetches a row of the next tile's C and a line of the bytes ahead.
func (x *tiling) fetch() {
	for off := 0; off < 2*x.vectorBytes(); off += 64 {
		x.PREFETCHT0(at(x.nextC, off))
	}
	x.ADDQ(at(x.t, fieldLDC), x.nextC)
	x.PREFETCHT0(at(x.ahead, 0))
	x.ADDQ(operand.Imm(64), x.ahead)
}

func (x *tiling) store(acc [][2]reg.VecVirtual) {
	d, ldd := x.present(fieldD, fieldStepD), x.field(fieldLDD)
	for i, v := range acc {
		x.VMOVUPS(v[0], at(d, 0))
		x.VMOVUPS(v[1], at(d, x.vectorBytes()))
		if i < x.rows-1 {
			x.ADDQ(ldd, d)
		}
	}
}

// point sets lines to every third row of A. The two rows after each of them are one and two
// strides further.
func (x *tiling) point() {
	x.lines = []reg.GPVirtual{x.present(fieldA, fieldStepA)}
	for i := 3; i < x.rows; i += 3 {
		p := x.GP64()
		x.LEAQ(indexed(x.lines[len(x.lines)-1], x.lda, 2, 0), p)
		x.ADDQ(x.lda, p)
		x.lines = append(x.lines, p)
	}
}

// unroll is the number of values of k per iteration of the inner loop (8 is not faster,
// measured).
const unroll = 4

// steps generates the work for n values of k. It reads B from a dense panel, so that no pointer
// moves at each k (that would cost 2 % with AVX2, measured). Tiles that write the panel, and
// tiles of at most directRows rows, may read B in place.
func (x *tiling) steps(acc [][2]reg.VecVirtual, n int) {
	width := x.vectorBytes()
	dense := !x.keepPanel && x.rows > directRows
	for i := range n {
		b0, b1, at0 := x.vector(), x.vector(), 0
		if dense {
			at0 = 2 * i * width
		}
		x.VMOVUPS(at(x.b, at0), b0)
		x.VMOVUPS(at(x.b, at0+width), b1)
		if x.keepPanel {
			x.VMOVUPS(b0, at(x.panel, 2*i*width))
			x.VMOVUPS(b1, at(x.panel, (2*i+1)*width))
			x.fetchRow()
		}
		if !dense {
			x.ADDQ(at(x.t, fieldLDB), x.b)
		}
		for r, v := range acc {
			m := at(x.lines[r/3], 4*i)
			if r%3 > 0 {
				m = indexed(x.lines[r/3], x.lda, uint8(r%3), 4*i)
			}
			y := x.vector()
			x.VBROADCASTSS(m, y)
			x.VFMADD231PS(b0, y, v[0])
			x.VFMADD231PS(b1, y, v[1])
		}
	}
	for _, p := range x.lines {
		x.ADDQ(operand.Imm(uint64(4*n)), p)
	}
	if dense {
		x.ADDQ(operand.I32(2*n*width), x.b)
	}
	if x.keepPanel {
		x.ADDQ(operand.I32(2*n*width), x.panel)
	}
}

// directRows is the largest number of rows of a tile that may read B at any stride.
const directRows = 2

// fetchRow prefetches the row of B that is 1<<keepAhead rows below the current row.
func (x *tiling) fetchRow() {
	p := x.GP64()
	x.MOVQ(at(x.t, fieldLDB), p)
	x.SHLQ(operand.Imm(keepAhead), p)
	for off := 0; off < 2*x.vectorBytes(); off += 64 {
		x.PREFETCHT0(indexed(x.b, p, 1, off))
	}
}

const keepAhead = 5 // 32 rows

// pack generates a function that copies B into panels. A panel has the layout [k][2 vectors],
// for one run of columns.
func (g *gen) pack() {
	g.begin("pack", "func(dst *float32, dstRow, dstPanel int, src *float32, srcRow, srcPanel int, rows, panels int)",
		fmt.Sprintf("copies rows of panels runs of %d numbers. Strides of both sides in bytes.", 2*g.lanes))
	dst, src, rows := g.arg("dst"), g.arg("src"), g.arg("rows")
	dstPanel, srcPanel := g.arg("dstPanel"), g.arg("srcPanel")
	g.Label("row")
	to, from, n := g.GP64(), g.GP64(), g.arg("panels")
	g.MOVQ(dst, to)
	g.MOVQ(src, from)
	g.Label("panel")
	x, y := g.vector(), g.vector()
	g.VMOVUPS(at(from, 0), x)
	g.VMOVUPS(at(from, g.vectorBytes()), y)
	g.VMOVUPS(x, at(to, 0))
	g.VMOVUPS(y, at(to, g.vectorBytes()))
	g.ADDQ(dstPanel, to)
	g.ADDQ(srcPanel, from)
	g.DECQ(n)
	g.JNZ(operand.LabelRef("panel"))
	g.ADDQ(g.arg("dstRow"), dst)
	g.ADDQ(g.arg("srcRow"), src)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef("row"))
	g.end()
}

// transpose transposes rows into columns, 8x8 numbers at a time.
func (g *gen) transpose() {
	g.begin("transpose8", "func(dst *float32, dstRow int, src *float32, srcRow int, blocks int)",
		"writes 8 rows of 8*blocks numbers as 8*blocks rows of 8. Row strides in bytes.")
	dst, src := g.arg("dst"), g.arg("src")
	dstRow, srcRow, blocks := g.arg("dstRow"), g.arg("srcRow"), g.arg("blocks")
	g.Label("block")
	var r [8]reg.VecVirtual
	p := g.GP64()
	g.MOVQ(src, p)
	for i := range r {
		r[i] = g.YMM()
		g.VMOVUPS(at(p, 0), r[i])
		g.ADDQ(srcRow, p)
	}
	r = g.crossed(r, func(x, y, lo, hi operand.Op) { g.VUNPCKLPS(y, x, lo); g.VUNPCKHPS(y, x, hi) }, 1)
	r = g.crossed(r, func(x, y, lo, hi operand.Op) { g.VUNPCKLPD(y, x, lo); g.VUNPCKHPD(y, x, hi) }, 2)
	r = g.crossed(r, func(x, y, lo, hi operand.Op) {
		g.VPERM2F128(operand.Imm(0x20), y, x, lo)
		g.VPERM2F128(operand.Imm(0x31), y, x, hi)
	}, 4)
	// The second call of crossed leaves columns 1 and 2, and 5 and 6, swapped.
	for _, i := range [8]int{0, 2, 1, 3, 4, 6, 5, 7} {
		g.VMOVUPS(r[i], at(dst, 0))
		g.ADDQ(dstRow, dst)
	}
	g.ADDQ(operand.Imm(32), src)
	g.DECQ(blocks)
	g.JNZ(operand.LabelRef("block"))
	g.end()
}

// crossed mixes registers that are step apart, pair by pair.
func (g *gen) crossed(r [8]reg.VecVirtual, mix func(x, y, lo, hi operand.Op), step int) (out [8]reg.VecVirtual) {
	for i := range r {
		if i&step != 0 {
			continue
		}
		out[i], out[i|step] = g.YMM(), g.YMM()
		mix(r[i], r[i|step], out[i], out[i|step])
	}
	return out
}
