package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// buffers generates the functions that read and update a recurrent state with a buffer of recent
// rows next to it.
func (g *gen) buffers() {
	g.sumRows(1)
	g.sumRows(2)
	g.dotRows()
	g.scaled()
	g.carried()
	g.fetchBytes()
	g.addRankOnes()
	g.dot(4)
}

// rowsAtOnce is the number of rows that sumRows adds before it stores the sums. With this
// number, the factors of these rows fit in registers even if sumRows computes two sums.
const rowsAtOnce = 4

// aheadShift sets how far ahead sumRows prefetches: 1<<aheadShift rows. Without prefetching,
// reading a state from memory stalls at every 4 KiB, and recurrent decoding has a quarter of the
// speed (measured). sumRows does not prefetch in a matrix with fewer rows: such a matrix is a
// buffer, and the memory after it is not needed soon.
const aheadShift = 5

// sumRows generates a function that computes the sum of the rows of a matrix, each multiplied by
// a factor, for one or two sets of factors.
func (g *gen) sumRows(sets int) {
	signature, doc := "func(a, x *float32, s *float32, stride, rows, cols int)", "is a += sum of x[i] times row i of s. The stride is in bytes."
	if sets == 2 {
		signature, doc = "func(a, b, x, y *float32, s *float32, stride, rows, cols int)", "is the same for two sums, a with x and b with y."
	}
	g.begin(fmt.Sprintf("sumRows%d", sets), signature, doc)
	s, stride, rows := g.arg("s"), g.arg("stride"), g.arg("rows")
	factors := []reg.GPVirtual{g.arg("x")}
	if sets == 2 {
		factors = append(factors, g.arg("y"))
	}
	ahead := g.GP64()
	g.MOVQ(stride, ahead)
	g.SHLQ(operand.Imm(aheadShift), ahead)
	block := func(label string, n int, fetch bool) {
		sums := []reg.GPVirtual{g.arg("a")}
		if sets == 2 {
			sums = append(sums, g.arg("b"))
		}
		var scale [2][]reg.VecVirtual
		for i, f := range factors {
			for r := range n {
				v := g.vector()
				g.VBROADCASTSS(at(f, 4*r), v)
				scale[i] = append(scale[i], v)
			}
			g.ADDQ(operand.Imm(uint64(4*n)), f)
		}
		lines := make([]reg.GPVirtual, n)
		for r := range lines {
			lines[r] = g.GP64()
			g.MOVQ(s, lines[r])
			g.ADDQ(stride, s)
		}
		g.over(label+"Columns", g.arg("cols"), 2, nil, func(l *lane, i int) {
			sum := make([]reg.VecVirtual, sets)
			for k := range sum {
				sum[k] = l.load(f32, sums[k], i*g.vectorBytes())
			}
			for r, line := range lines {
				if fetch && !l.one && i*g.vectorBytes()%64 == 0 {
					g.PREFETCHT1(indexed(line, ahead, 1, i*g.vectorBytes()))
				}
				v := l.load(f32, line, i*g.vectorBytes())
				for k := range sum {
					l.VFMADD231PS(v, l.fit(scale[k][r]), sum[k])
				}
			}
			for k := range sum {
				l.store(f32, sum[k], sums[k], i*g.vectorBytes())
			}
		}, g.advance(f32, append(sums, lines...), nil))
	}
	g.CMPQ(rows, operand.Imm(1<<aheadShift))
	g.JL(operand.LabelRef("many"))
	g.loopWhile("state", "one", rows, rowsAtOnce, func() { block("state", rowsAtOnce, true) })
	g.loopWhile("many", "one", rows, rowsAtOnce, func() { block("many", rowsAtOnce, false) })
	g.loopWhile("one", "done", rows, 1, func() { block("one", 1, false) })
	g.Label("done")
	g.end()
}

// dotRows generates the dot products of each row of a matrix with two vectors.
func (g *gen) dotRows() {
	g.begin("dotRows", "func(x, y, q, k *float32, s *float32, stride, rows, cols int)",
		"is x[i] = q * row i of s, y[i] = k * row i of s. The stride is in bytes.")
	x, y, s, rows := g.arg("x"), g.arg("y"), g.arg("s"), g.arg("rows")
	g.Label("row")
	q, k, line := g.arg("q"), g.arg("k"), g.GP64()
	g.MOVQ(s, line)
	acc := [2]reg.VecVirtual{g.vector(), g.vector()}
	g.zero(acc[0])
	g.zero(acc[1])
	g.over("", g.arg("cols"), 1, nil, func(l *lane, _ int) {
		v := l.load(f32, line, 0)
		for i, p := range []reg.GPVirtual{q, k} {
			w := l.load(f32, p, 0)
			if l.one { // as in dot
				g.VFMADD231PS(v.AsY(), w.AsY(), acc[i])
				continue
			}
			l.VFMADD231PS(v, w, acc[i])
		}
	}, g.advance(f32, []reg.GPVirtual{q, k, line}, nil))
	for i, p := range []reg.GPVirtual{x, y} {
		g.VMOVSS(g.folded(acc[i]), at(p, 0))
		g.ADDQ(operand.Imm(4), p)
	}
	g.ADDQ(g.arg("stride"), s)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef("row"))
	g.end()
}

// fetchBytes generates a function that prefetches memory that will be read soon.
func (g *gen) fetchBytes() {
	g.begin("fetch", "func(p *byte, n int)", "asks for the lines of n bytes, a positive number.")
	p, n := g.arg("p"), g.arg("n")
	g.Label("line")
	g.PREFETCHT1(at(p, 0))
	g.ADDQ(operand.Imm(64), p)
	g.SUBQ(operand.Imm(64), n)
	g.JG(operand.LabelRef("line"))
	g.RET()
}

func (g *gen) scaled() {
	g.begin("scaled", "func(y *float32, a float32, s *float32, n int)", "is y = a*s.")
	y, s, n := g.arg("y"), g.arg("s"), g.arg("n")
	a := g.broadcastArg("a")
	g.over("", n, 2, nil, func(l *lane, i int) {
		v := l.load(f32, s, i*g.vectorBytes())
		l.VMULPS(l.fit(a), v, v)
		l.store(f32, v, y, i*g.vectorBytes())
	}, g.advance(f32, []reg.GPVirtual{y, s}, nil))
	g.end()
}

func (g *gen) carried() {
	g.begin("carried", "func(y, w, d, s *float32, n int)", "is y = w*s and then w = w*d.")
	y, w, d, s, n := g.arg("y"), g.arg("w"), g.arg("d"), g.arg("s"), g.arg("n")
	g.over("", n, 1, nil, func(l *lane, _ int) {
		c := l.load(f32, w, 0)
		v := l.load(f32, s, 0)
		l.VMULPS(c, v, v)
		l.store(f32, v, y, 0)
		l.VMULPS(l.load(f32, d, 0), c, c)
		l.store(f32, c, w, 0)
	}, g.advance(f32, []reg.GPVirtual{y, w, d, s}, nil))
	g.end()
}

// blockRows and blockVectors are the size, in rows and vectors, of the part of a state that
// stays in registers while all rows of a buffer are applied.
const blockRows, blockVectors = 4, 2

// blocks generates a walk over a state [rows, cols], block by block. rows must be a multiple of
// blockRows, and cols of blockVectors vectors. To each block it applies n rows of K and U, which
// are ldk and ldu bytes apart.
type blocks struct {
	*gen
	s, k, u reg.GPVirtual // of the current block of rows
	sp      reg.GPVirtual // of the current block
	kp, up  reg.GPVirtual // of the current row
	sums    [blockRows][blockVectors]reg.VecVirtual
}

func (g *gen) param(name string) operand.Mem {
	a, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return a.Addr
}

// walk generates the loops of a block kernel. The function start generates the code after a
// block is loaded, step the code for each applied row, and rowDone the code after the last block
// of blockRows rows.
func (g *gen) walk(rowDone func(), start, step func(b *blocks)) {
	b := &blocks{gen: g, s: g.arg("s"), k: g.arg("k")}
	lds, rows := g.arg("lds"), g.arg("rows")
	g.Label("block")
	b.sp, b.u = g.GP64(), g.arg("u")
	cols := g.arg("cols")
	g.MOVQ(b.s, b.sp)
	g.Label("panel")
	line := g.GP64()
	g.MOVQ(b.sp, line)
	for r := range b.sums {
		for c := range b.sums[r] {
			b.sums[r][c] = g.vector()
			g.VMOVUPS(at(line, c*g.vectorBytes()), b.sums[r][c])
		}
		if r < blockRows-1 {
			g.ADDQ(lds, line)
		}
	}
	b.kp, b.up = g.GP64(), g.GP64()
	g.MOVQ(b.k, b.kp)
	g.MOVQ(b.u, b.up)
	start(b)
	n := g.arg("n")
	g.Label("pass")
	step(b)
	g.ADDQ(g.param("ldk"), b.kp)
	g.ADDQ(g.param("ldu"), b.up)
	g.DECQ(n)
	g.JNZ(operand.LabelRef("pass"))
	out := g.GP64()
	g.MOVQ(b.sp, out)
	for r := range b.sums {
		for c := range b.sums[r] {
			g.VMOVUPS(b.sums[r][c], at(out, c*g.vectorBytes()))
		}
		if r < blockRows-1 {
			g.ADDQ(lds, out)
		}
	}
	width := blockVectors * g.vectorBytes()
	g.ADDQ(operand.I32(width), b.sp)
	g.ADDQ(operand.I32(width), b.u)
	g.SUBQ(operand.I32(width/4), cols)
	g.JNZ(operand.LabelRef("panel"))

	rowDone()
	g.ADDQ(operand.Imm(4*blockRows), b.k)
	g.LEAQ(indexed(b.s, lds, 4, 0), b.s)
	g.SUBQ(operand.Imm(blockRows), rows)
	g.JNZ(operand.LabelRef("block"))
	g.end()
}

// passing loads the block's columns of the current row of U.
func (b *blocks) passing() (u [blockVectors]reg.VecVirtual) {
	for c := range u {
		u[c] = b.vector()
		b.VMOVUPS(at(b.up, c*b.vectorBytes()), u[c])
	}
	return u
}

// addRankOnes generates a function that scales a state and adds outer products, with fused
// multiply-adds.
func (g *gen) addRankOnes() {
	g.begin("addRankOnes", "func(s *float32, lds int, d *float32, k *float32, ldk int, u *float32, ldu int, n, rows, cols int)",
		"is s[i] = d[i]*s[i] + the sum over n of k[n][i]*u[n]. Strides in bytes.")
	d := g.arg("d")
	g.walk(func() { g.ADDQ(operand.Imm(4*blockRows), d) },
		func(b *blocks) {
			for r := range b.sums {
				f := g.vector()
				g.VBROADCASTSS(at(d, 4*r), f)
				for _, s := range b.sums[r] {
					g.VMULPS(f, s, s)
				}
			}
		},
		func(b *blocks) {
			u := b.passing()
			for r := range b.sums {
				f := g.vector()
				g.VBROADCASTSS(at(b.kp, 4*r), f)
				for c, s := range b.sums[r] {
					g.VFMADD231PS(u[c], f, s)
				}
			}
		})
}

// replay generates a function that applies rows to a state in order. Each product and each sum
// is rounded, so the result is bit-identical to plain Go.
func (g *gen) replay(perKey bool) {
	name, doc := "replay", "is s = d[n]*s + k[n]*u[n] for each n in order. Strides in bytes."
	if perKey {
		name, doc = "replayPerKey", "is the same with a decay d[n][i] for each row i of s."
	}
	g.begin(name, "func(s *float32, lds int, d *float32, ldd int, k *float32, ldk int, u *float32, ldu int, n, rows, cols int)", doc)
	d := g.arg("d")
	var dp reg.GPVirtual
	g.walk(func() {
		if perKey {
			g.ADDQ(operand.Imm(4*blockRows), d)
		}
	}, func(*blocks) {
		dp = g.GP64()
		g.MOVQ(d, dp)
	}, func(b *blocks) {
		u := b.passing()
		decay := g.vector()
		if !perKey {
			g.VBROADCASTSS(at(dp, 0), decay)
		}
		for r := range b.sums {
			if perKey {
				decay = g.vector()
				g.VBROADCASTSS(at(dp, 4*r), decay)
			}
			k := g.vector()
			g.VBROADCASTSS(at(b.kp, 4*r), k)
			for c, s := range b.sums[r] {
				add := g.vector()
				g.VMULPS(k, u[c], add)
				g.VMULPS(decay, s, s)
				g.VADDPS(add, s, s)
			}
		}
		g.ADDQ(g.param("ldd"), dp)
	})
}
