package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// conversions generates the functions widen and narrow of both half types.
func (g *gen) conversions() {
	for _, dt := range []dtype{f16, bf16} {
		g.widenTo(dt)
		g.narrowTo(dt)
	}
}

func (g *gen) widenTo(dt dtype) {
	g.begin("widen"+dt.String(), "func(dst *float32, src *byte, n int)", "reads n numbers as F32.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	g.over("", n, 64/g.vectorBytes()*2, nil, func(l *lane, i int) {
		v := l.load(dt, src, i*g.lanes*dt.size())
		l.store(f32, v, dst, i*g.vectorBytes())
	}, func(n int) {
		g.ADDQ(operand.I32(n*dt.size()), src)
		g.ADDQ(operand.I32(n*4), dst)
	})
	g.end()
}

func (g *gen) narrowTo(dt dtype) {
	g.begin("narrow"+dt.String(), "func(dst *byte, src *float32, n int)", "writes n F32 numbers, rounded to nearest even.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	var rne *rounding
	if dt == bf16 {
		rne = g.rounding()
	}
	g.over("", n, 2, rne, func(l *lane, i int) {
		v := l.load(f32, src, i*g.vectorBytes())
		l.store(dt, v, dst, i*g.lanes*dt.size())
	}, func(n int) {
		g.ADDQ(operand.I32(n*4), src)
		g.ADDQ(operand.I32(n*dt.size()), dst)
	})
	g.end()
}

// states generates functions that compose states with scalar and diagonal transitions. Each
// product and each sum is rounded, as in plain Go.
func (g *gen) states() {
	for _, dt := range []dtype{f32, f16, bf16} {
		g.scaleRows(dt)
		g.scaleEach(dt)
		g.scaleTurned(dt)
	}
}

func (g *gen) scaleRows(dt dtype) {
	g.begin("scaleRows"+dt.String(), "func(y, t *float32, s *byte, rows, cols int)",
		"is y = t*y + s, row by row with a t for each.")
	y, t, s, rows := g.arg("y"), g.arg("t"), g.arg("s"), g.arg("rows")
	g.Label("row")
	a, n := g.vector(), g.arg("cols")
	g.VBROADCASTSS(at(t, 0), a)
	g.over("", n, 2, nil, func(l *lane, i int) {
		v := l.load(f32, y, i*g.vectorBytes())
		l.VMULPS(l.fit(a), v, v)
		l.VADDPS(l.load(dt, s, i*g.lanes*dt.size()), v, v)
		l.store(f32, v, y, i*g.vectorBytes())
	}, g.advance(dt, []reg.GPVirtual{y}, []reg.GPVirtual{s}))
	if g.lanes == 16 { // the last numbers of a row were processed under a mask
		rest := g.arg("cols")
		g.ANDQ(operand.Imm(15), rest)
		g.LEAQ(indexed(y, rest, 4, 0), y)
		g.LEAQ(indexed(s, rest, uint8(dt.size()), 0), s)
	}
	g.ADDQ(operand.Imm(4), t)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef("row"))
	g.end()
}

func (g *gen) scaleEach(dt dtype) {
	g.begin("scaleEach"+dt.String(), "func(y, t *float32, s *byte, n int)", "is y = t*y + s, number by number.")
	y, t, s, n := g.arg("y"), g.arg("t"), g.arg("s"), g.arg("n")
	g.over("", n, 1, nil, func(l *lane, i int) {
		v := l.load(f32, y, i*g.vectorBytes())
		l.VMULPS(l.load(f32, t, i*g.vectorBytes()), v, v)
		l.VADDPS(l.load(dt, s, i*g.lanes*dt.size()), v, v)
		l.store(f32, v, y, i*g.vectorBytes())
	}, g.advance(dt, []reg.GPVirtual{y, t}, []reg.GPVirtual{s}))
	g.end()
}

func (g *gen) scaleTurned(dt dtype) {
	g.begin("scaleTurned"+dt.String(), "func(y0, y1 *float32, s0, s1 *byte, t, cos, sin float32, n int)",
		"is y = t*y + s for two rows, with the rows of s turned as a pair first.")
	y0, y1, s0, s1, n := g.arg("y0"), g.arg("y1"), g.arg("s0"), g.arg("s1"), g.arg("n")
	t, cos, sin := g.broadcastArg("t"), g.broadcastArg("cos"), g.broadcastArg("sin")
	g.over("", n, 1, nil, func(l *lane, i int) {
		p, q := l.turn(l.load(dt, s0, 0), l.load(dt, s1, 0), l.fit(cos), l.fit(sin))
		for _, row := range []struct {
			y reg.GPVirtual
			s reg.VecVirtual
		}{{y0, p}, {y1, q}} {
			v := l.load(f32, row.y, 0)
			l.VMULPS(l.fit(t), v, v)
			l.VADDPS(row.s, v, v)
			l.store(f32, v, row.y, 0)
		}
	}, g.advance(dt, []reg.GPVirtual{y0, y1}, []reg.GPVirtual{s0, s1}))
	g.end()
}

// turn returns (x cos - y sin, y cos + x sin). The product with the sine is rounded; the product
// with the cosine and the sum are one fused multiply-add.
func (l *lane) turn(x, y reg.VecVirtual, cos, sin operand.Op) (p, q reg.VecVirtual) {
	p, q = l.vec(), l.vec()
	l.VMULPS(sin, y, p)
	l.VMULPS(sin, x, q)
	l.VFMSUB231PS(cos, x, p)
	l.VFMADD231PS(cos, y, q)
	return p, q
}

// advance returns a function that moves pointers forward by a number of elements: the pointers
// in wide point to F32, those in narrow to dt.
func (g *gen) advance(dt dtype, wide, narrow []reg.GPVirtual) func(int) {
	return func(n int) {
		for _, p := range wide {
			g.ADDQ(operand.I32(4*n), p)
		}
		for _, p := range narrow {
			g.ADDQ(operand.I32(n*dt.size()), p)
		}
	}
}

func (g *gen) axpy() {
	g.begin("axpy", "func(y *float32, a float32, x *float32, n int)", "is y += a*x.")
	y, x, n := g.arg("y"), g.arg("x"), g.arg("n")
	a := g.broadcastArg("a")
	g.over("", n, 4, nil, func(l *lane, i int) {
		v := l.load(f32, y, i*g.vectorBytes())
		l.VFMADD231PS(l.load(f32, x, i*g.vectorBytes()), l.fit(a), v)
		l.store(f32, v, y, i*g.vectorBytes())
	}, g.advance(f32, []reg.GPVirtual{x, y}, nil))
	g.end()
}

// dot accumulates in several registers, which are added in a tree at the end.
func (g *gen) dot(accumulators int) {
	g.begin("dot", "func(x, y *float32, n int) float32", fmt.Sprintf("adds x*y in %d sums.", accumulators*g.lanes))
	x, y, n := g.arg("x"), g.arg("y"), g.arg("n")
	acc := make([]reg.VecVirtual, accumulators)
	for i := range acc {
		acc[i] = g.vector()
		g.zero(acc[i])
	}
	g.over("", n, accumulators, nil, func(l *lane, i int) {
		v := l.load(f32, x, i*g.vectorBytes())
		w := l.load(f32, y, i*g.vectorBytes())
		if l.one { // a scalar multiply-add would clear the upper sums; v and w have zeros after the first number
			g.VFMADD231PS(v.AsY(), w.AsY(), acc[i])
			return
		}
		l.VFMADD231PS(v, w, acc[i])
	}, g.advance(f32, []reg.GPVirtual{x, y}, nil))
	for n := accumulators / 2; n > 0; n /= 2 {
		for i := range n {
			g.VADDPS(acc[i+n], acc[i], acc[i])
		}
	}
	sum := g.folded(acc[0])
	g.Store(sum, g.ReturnIndex(0))
	g.end()
}

// folded returns the sum of the lanes of v.
func (g *gen) folded(v reg.VecVirtual) reg.Register {
	if g.lanes == 16 {
		h := g.YMM()
		g.VEXTRACTF64X4(operand.Imm(1), v, h)
		g.VADDPS(h, v.AsY(), h)
		v = h
	}
	q := g.XMM()
	g.VEXTRACTF128(operand.Imm(1), v.AsY(), q)
	g.VADDPS(v.AsX(), q, q)
	g.VHADDPS(q, q, q)
	g.VHADDPS(q, q, q)
	return q
}
