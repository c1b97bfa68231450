package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// peak does nothing but independent multiply-adds.
func (g *gen) peak(accumulators int) {
	g.begin("peakFMA", "func(rounds int)",
		fmt.Sprintf("does rounds of %d multiply-adds of %d numbers in registers.", accumulators, g.lanes))
	rounds := g.arg("rounds")
	one := g.vector()
	g.zero(one)
	acc := make([]reg.VecVirtual, accumulators)
	for i := range acc {
		acc[i] = g.vector()
		g.zero(acc[i])
	}
	g.Label("loop")
	for _, a := range acc {
		g.VFMADD231PS(one, one, a)
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

// products makes the tiles of D = C + A*B with the given numbers of rows, two
// vectors wide, and what brings B into panels of that width. The tallest tile
// also exists in a form that writes B as a panel while it reads it.
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
	b, c, d   reg.GPVirtual // at the present tile
	lines     []reg.GPVirtual
	lda       reg.GPVirtual
	panel     reg.GPVirtual // where B is written, when it is
	rows      int
	keepPanel bool
}

// tile keeps rows x 2 vectors of D in registers while it walks along k. A is read
// row-major, number by number; B is read two vectors per k.
func (g *gen) tile(rows int, keepPanel bool) {
	name, doc := fmt.Sprintf("tile%dx%d", rows, 2*g.lanes), "computes t.count tiles, t.step* apart, each D = C + A*B."
	if keepPanel {
		name, doc = name+"Keep", "does the same and writes the rows of B that it reads to a panel, densely."
	}
	g.begin(name, "func(t *tile)", doc)
	x := &tiling{gen: g, t: g.arg("t"), rows: rows, keepPanel: keepPanel}
	a := x.field(fieldA)
	x.b, x.c, x.d = x.field(fieldB), x.field(fieldC), x.field(fieldD)
	x.lda = x.field(fieldLDA)
	if keepPanel {
		x.panel = x.field(fieldPanel)
	}
	count := x.field(fieldCount)

	g.Label("tile")
	acc := x.load(count)
	b, panel := g.GP64(), g.GP64()
	g.MOVQ(x.b, b)
	if keepPanel {
		g.MOVQ(x.panel, panel)
	}
	x.point(a)
	k := x.field(fieldK)
	g.CMPQ(k, operand.Imm(4))
	g.JLT(operand.LabelRef("rest"))
	g.Label("four")
	x.steps(acc, b, panel, 4)
	g.SUBQ(operand.Imm(4), k)
	g.CMPQ(k, operand.Imm(4))
	g.JGE(operand.LabelRef("four"))
	g.Label("rest")
	g.TESTQ(k, k)
	g.JZ(operand.LabelRef("store"))
	g.Label("one")
	x.steps(acc, b, panel, 1)
	g.DECQ(k)
	g.JNZ(operand.LabelRef("one"))

	g.Label("store")
	x.store(acc)
	g.ADDQ(at(x.t, fieldStepA), a)
	g.ADDQ(at(x.t, fieldStepB), x.b)
	if keepPanel {
		g.ADDQ(at(x.t, fieldStepPanel), x.panel)
	}
	g.DECQ(count)
	g.JNZ(operand.LabelRef("tile"))
	g.end()
}

func (x *tiling) field(off int) reg.GPVirtual {
	r := x.GP64()
	x.MOVQ(at(x.t, off), r)
	return r
}

// load fills the accumulators from C and asks for the lines of C that come next:
// it is often an end-state that nobody has touched yet.
func (x *tiling) load(count reg.GPVirtual) [][2]reg.VecVirtual {
	c, ldc := x.GP64(), x.field(fieldLDC)
	x.MOVQ(x.c, c)
	acc := make([][2]reg.VecVirtual, x.rows)
	for i := range acc {
		acc[i] = [2]reg.VecVirtual{x.vector(), x.vector()}
		x.VMOVUPS(at(c, 0), acc[i][0])
		x.VMOVUPS(at(c, x.vectorBytes()), acc[i][1])
		x.ADDQ(ldc, c)
	}
	x.ADDQ(at(x.t, fieldStepC), x.c)
	x.MOVQ(x.c, c)
	x.CMPQ(count, operand.Imm(1))
	x.CMOVQEQ(at(x.t, fieldAfter), c)
	for range x.rows {
		for off := 0; off < 2*x.vectorBytes(); off += 64 {
			x.PREFETCHT0(at(c, off))
		}
		x.ADDQ(ldc, c)
	}
	return acc
}

func (x *tiling) store(acc [][2]reg.VecVirtual) {
	d, ldd := x.GP64(), x.field(fieldLDD)
	x.MOVQ(x.d, d)
	for _, v := range acc {
		x.VMOVUPS(v[0], at(d, 0))
		x.VMOVUPS(v[1], at(d, x.vectorBytes()))
		x.ADDQ(ldd, d)
	}
	x.ADDQ(at(x.t, fieldStepD), x.d)
}

// point sets a pointer on every third row of A: the two below are one and two
// strides on.
func (x *tiling) point(a reg.GPVirtual) {
	first := x.GP64()
	x.MOVQ(a, first)
	x.lines = []reg.GPVirtual{first}
	for i := 3; i < x.rows; i += 3 {
		p := x.GP64()
		x.LEAQ(indexed(x.lines[len(x.lines)-1], x.lda, 2, 0), p)
		x.ADDQ(x.lda, p)
		x.lines = append(x.lines, p)
	}
}

// steps goes n numbers along k.
func (x *tiling) steps(acc [][2]reg.VecVirtual, b, panel reg.GPVirtual, n int) {
	width := x.vectorBytes()
	for i := range n {
		b0, b1 := x.vector(), x.vector()
		x.VMOVUPS(at(b, 0), b0)
		x.VMOVUPS(at(b, width), b1)
		if x.keepPanel {
			x.VMOVUPS(b0, at(panel, 2*i*width))
			x.VMOVUPS(b1, at(panel, (2*i+1)*width))
		}
		x.ADDQ(at(x.t, fieldLDB), b)
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
	if x.keepPanel {
		x.ADDQ(operand.I32(2*n*width), panel)
	}
}

// pack copies B into panels: [k][2 vectors] for each run of columns.
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

// transpose turns 8 rows into 8 columns, 8x8 numbers at a time.
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
	// The second crossing leaves columns 1 and 2 (and 5 and 6) exchanged.
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
