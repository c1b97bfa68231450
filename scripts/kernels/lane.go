package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dtype is an element type in memory.
type dtype int

const (
	f32 dtype = iota
	f16
	bf16
)

func (d dtype) String() string { return [...]string{"F32", "F16", "BF16"}[d] }

func (d dtype) size() int { return [...]int{4, 2, 2}[d] }

// lane is a way to process numbers: as a whole vector, or as the remainder of a row. AVX2 code
// processes the remainder number by number, with zeros in the other lanes of the register.
// AVX-512 code processes it at once, under a mask.
type lane struct {
	*gen
	one  bool
	mask reg.Register // nil: none
	rne  *rounding
}

// rounding holds the constants for rounding to BF16.
type rounding struct{ one, bias, quiet reg.VecVirtual }

// rounding computes the constants for rounding to BF16 from a register of all ones, so that no
// data section is needed.
func (g *gen) rounding() *rounding {
	r := &rounding{g.vector(), g.vector(), g.vector()}
	g.ones(r.one)
	g.VPSRLD(operand.Imm(17), r.one, r.bias) // 0x7fff
	g.VPSRLD(operand.Imm(31), r.one, r.one)  // 1
	g.VPSLLD(operand.Imm(22), r.one, r.quiet)
	return r
}

func (g *gen) ones(v reg.VecVirtual) {
	if g.lanes == 16 {
		g.VPTERNLOGD(operand.Imm(0xff), v, v, v)
		return
	}
	g.VPCMPEQD(v, v, v)
}

// vec returns a register for F32 numbers of this lane, also suitable for a constant.
func (l *lane) vec() reg.VecVirtual {
	if l.one {
		return l.XMM()
	}
	return l.vector()
}

func (l *lane) fit(v reg.VecVirtual) reg.Register {
	if l.one {
		return v.AsX()
	}
	return v
}

// load widens numbers to F32. disp is in bytes.
func (l *lane) load(dt dtype, base reg.Register, disp int) reg.VecVirtual {
	m, v := at(base, disp), l.vec()
	switch {
	case l.one:
		l.loadOne(dt, m, v)
	case dt == f32 && l.mask != nil:
		l.VMOVUPS_Z(m, l.mask, v)
	case dt == f32:
		l.VMOVUPS(m, v)
	case l.mask != nil:
		h := l.half()
		l.VMOVDQU16_Z(m, l.mask, h)
		l.widen(dt, h, v)
	default:
		l.widen(dt, m, v)
	}
	return v
}

func (l *lane) loadOne(dt dtype, m operand.Mem, v reg.VecVirtual) {
	if dt == f32 {
		l.VMOVSS(m, v)
		return
	}
	w := l.GP32()
	l.MOVWLZX(m, w)
	if dt == bf16 {
		l.SHLL(operand.Imm(16), w)
	}
	l.VMOVD(w, v)
	if dt == f16 {
		l.VCVTPH2PS(v, v)
	}
}

func (l *lane) widen(dt dtype, from operand.Op, v reg.VecVirtual) {
	if dt == f16 {
		l.VCVTPH2PS(from, v)
		return
	}
	l.VPMOVZXWD(from, v)
	l.VPSLLD(operand.Imm(16), v, v)
}

// store rounds v to dt and writes it. It destroys v.
func (l *lane) store(dt dtype, v reg.VecVirtual, base reg.Register, disp int) {
	m := at(base, disp)
	switch {
	case dt == f32 && l.one:
		l.VMOVSS(v, m)
	case dt == f32 && l.mask != nil:
		l.VMOVUPS(v, l.mask, m)
	case dt == f32:
		l.VMOVUPS(v, m)
	case l.one:
		l.VPEXTRW(operand.Imm(0), l.narrow(dt, v), m)
	case l.mask != nil:
		l.VMOVDQU16(l.narrow(dt, v), l.mask, m)
	default:
		l.VMOVDQU(l.narrow(dt, v), m)
	}
}

// narrow returns v as dt in a register of half the width.
func (l *lane) narrow(dt dtype, v reg.VecVirtual) reg.Register {
	h := l.half()
	if l.one {
		h = v
	}
	if dt == f16 {
		l.VCVTPS2PH(operand.Imm(0), v, h)
		return h
	}
	l.round(v)
	switch {
	case l.lanes == 16:
		l.VPSRLD(operand.Imm(16), v, v)
		l.VPMOVDW(v, h)
	case l.one:
		l.VPSRLD(operand.Imm(16), v, v)
	default: // packs within halves of the register, then joins them
		l.VPSRLD(operand.Imm(16), v, v)
		l.VPACKUSDW(v, v, v)
		l.VPERMQ(operand.Imm(0x08), v, v)
		return v.AsX()
	}
	return h
}

// round rounds v to nearest even and leaves the result in the upper 16 bits; the lower 16 bits
// are undefined. It makes NaN quiet instead of rounding it, because rounding could turn it into
// infinity.
func (l *lane) round(v reg.VecVirtual) {
	up, one, bias, quiet := l.vec(), l.fit(l.rne.one), l.fit(l.rne.bias), l.fit(l.rne.quiet)
	l.VPSRLD(operand.Imm(16), v, up)
	if l.lanes == 16 {
		nan := l.K()
		l.VCMPPS(operand.Imm(3), v, v, nan) // unordered
		l.VPANDD(one, up, up)
		l.VPADDD(bias, up, up)
		l.VPADDD(v, up, up)
		l.VPORD(quiet, v, nan, up)
		l.VMOVDQA32(up, v)
		return
	}
	nan := l.vec()
	l.VCMPPS(operand.Imm(3), v, v, nan)
	l.VPAND(one, up, up)
	l.VPADDD(bias, up, up)
	l.VPADDD(v, up, up)
	l.VPOR(quiet, v, v)
	l.VBLENDVPS(nan, v, up, v)
}

// over generates loops over n numbers: one that processes several vectors at a time (unroll is
// their number), one that processes single vectors, and the code for the remainder. body
// generates the work for one vector, given its index within the iteration. advance generates the
// code that moves the pointers forward.
func (g *gen) over(label string, n reg.GPVirtual, unroll int, rne *rounding, body func(l *lane, i int), advance func(numbers int)) {
	many, single, rest, done := label+"Many", label+"Single", label+"Rest", label+"Done"
	whole := &lane{gen: g, rne: rne}
	if unroll > 1 {
		g.loopWhile(many, single, n, unroll*g.lanes, func() {
			for i := range unroll {
				body(whole, i)
			}
			advance(unroll * g.lanes)
		})
	}
	g.loopWhile(single, rest, n, g.lanes, func() {
		body(whole, 0)
		advance(g.lanes)
	})
	if g.lanes == 16 {
		g.Label(rest)
		g.TESTQ(n, n)
		g.JZ(operand.LabelRef(done))
		body(&lane{gen: g, rne: rne, mask: g.firstLanes(n)}, 0)
		g.Label(done)
		return
	}
	g.loopWhile(rest, done, n, 1, func() {
		body(&lane{gen: g, rne: rne, one: true}, 0)
		advance(1)
	})
	g.Label(done)
}

// loopWhile generates a loop that runs body while n is at least step, and subtracts step from n
// each time.
func (g *gen) loopWhile(label, next string, n reg.GPVirtual, step int, body func()) {
	g.Label(label)
	g.CMPQ(n, operand.I32(step))
	g.JLT(operand.LabelRef(next))
	body()
	g.SUBQ(operand.I32(step), n)
	g.JMP(operand.LabelRef(label))
}

// firstLanes returns a mask of the first n lanes.
func (g *gen) firstLanes(n reg.GPVirtual) reg.Register {
	bits, mask := g.GP32(), g.K()
	g.MOVL(operand.U32(0xffff), bits)
	g.BZHIL(n.As32(), bits, bits)
	g.KMOVW(bits, mask)
	return mask
}
