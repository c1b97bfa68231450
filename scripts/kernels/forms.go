package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// forms generates the functions that pack heads as integers, measure the remaining error, and
// unpack. Each product and each sum is rounded, as in plain Go.
func (g *gen) forms() {
	g.unpackRows("Int8", 8)
	g.unpackRows("Int12", 12)
	g.unpackRows("Int16", 16)
	g.peakBits()
	g.quantize()
	g.squares()
	g.inner()
	g.weighted()
	g.gramRows()
}

// unpackRows generates a function that unpacks rows of integers. Rows are contiguous in src and
// dst. The length of a row of 12-bit integers is a multiple of a vector.
func (g *gen) unpackRows(name string, bits int) {
	g.begin("unpack"+name, "func(dst *float32, scales, src *byte, rows, cols int)", "reads rows of integers, each row with a scale.")
	dst, scales, src, rows := g.arg("dst"), g.arg("scales"), g.arg("src"), g.arg("rows")
	var twelve *twelveBits
	if bits == 12 {
		twelve = g.twelveBits()
	}
	g.Label("row")
	scale, n := g.vector(), g.arg("cols")
	g.VBROADCASTSS(at(scales, 0), scale)
	body := func(l *lane, i int) {
		var v reg.VecVirtual
		if bits == 12 {
			v = twelve.load(src, i*g.lanes*bits/8)
		} else {
			v = l.integers(bits, src, i*g.lanes*bits/8)
		}
		l.VCVTDQ2PS(v, v)
		l.VMULPS(l.fit(scale), v, v)
		l.store(f32, v, dst, i*g.vectorBytes())
	}
	advance := func(n int) {
		g.ADDQ(operand.I32(n*bits/8), src)
		g.ADDQ(operand.I32(n*4), dst)
	}
	if bits == 12 {
		g.Label("vector")
		body(&lane{gen: g}, 0)
		advance(g.lanes)
		g.SUBQ(operand.Imm(uint64(g.lanes)), n)
		g.JNZ(operand.LabelRef("vector"))
	} else {
		g.over("", n, 2, nil, body, advance)
		if g.lanes == 16 { // the last numbers of a row were processed under a mask
			rest := g.arg("cols")
			g.ANDQ(operand.Imm(15), rest)
			g.LEAQ(indexed(dst, rest, 4, 0), dst)
			g.LEAQ(indexed(src, rest, uint8(bits/8), 0), src)
		}
	}
	g.ADDQ(operand.Imm(4), scales)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef("row"))
	g.end()
}

// integers loads signed integers of 8 or 16 bits and widens them to 32 bits.
func (l *lane) integers(bits int, base reg.Register, disp int) reg.VecVirtual {
	m, v := at(base, disp), l.vec()
	switch {
	case l.one:
		w := l.GP32()
		if bits == 8 {
			l.MOVBLSX(m, w)
		} else {
			l.MOVWLSX(m, w)
		}
		l.VMOVD(w, v)
	case bits == 8 && l.mask != nil:
		h := l.XMM()
		l.VMOVDQU8_Z(m, l.mask, h)
		l.VPMOVSXBD(h, v)
	case bits == 8:
		l.VPMOVSXBD(m, v)
	case l.mask != nil:
		h := l.half()
		l.VMOVDQU16_Z(m, l.mask, h)
		l.VPMOVSXWD(h, v)
	default:
		l.VPMOVSXWD(m, v)
	}
	return v
}

// twelveBits holds the constants for unpacking 12-bit integers.
type twelveBits struct {
	*gen
	words, bytes, up reg.VecVirtual
	mask             reg.Register
}

// twelveBits loads the constants for unpacking 12-bit integers. Three bytes hold a pair of
// integers: the first integer in the lower 12 bits of bytes 0 and 1, the second in the upper 12
// bits of bytes 1 and 2. Each 128 bits of a vector receive two pairs. These six bytes begin at a
// 32-bit word or in the middle of one.
func (g *gen) twelveBits() *twelveBits {
	const none = 0x80 // a zero byte
	t := &twelveBits{gen: g}
	t.words = g.table("twelveWords", func(i int) uint32 { return uint32(i/4*6/4 + i%2) })
	t.bytes = g.table("twelveBytes", func(i int) uint32 {
		first := i/4%2*2 + i%4/2*3 + i%2
		return none | none<<8 | uint32(first)<<16 | uint32(first+1)<<24
	})
	t.up = g.table("twelveUp", func(i int) uint32 { return uint32(4 - i%2*4) })
	if g.lanes == 16 {
		w := g.GP32()
		t.mask = g.K()
		g.MOVL(operand.U32(0x3f), w)
		g.KMOVW(w, t.mask)
	}
	return t
}

// table loads a vector of constants.
func (g *gen) table(name string, entry func(i int) uint32) reg.VecVirtual {
	m, v := g.StaticGlobal(name+g.isa), g.vector()
	g.DataAttributes(rodata)
	for i := range g.lanes {
		g.AppendDatum(operand.U32(entry(i)))
	}
	g.VMOVUPS(m, v)
	return v
}

// load reads a vector of integers. It reads no byte after the last integer.
func (t *twelveBits) load(base reg.Register, disp int) reg.VecVirtual {
	v, from := t.vector(), t.YMM()
	if t.lanes == 16 {
		t.VMOVDQU32_Z(at(base, disp), t.mask, from)
		t.VPERMD(from.AsZ(), t.words, v)
	} else {
		t.VMOVQ(at(base, disp), from.AsX())
		t.VPINSRD(operand.Imm(2), at(base, disp+8), from.AsX(), from.AsX())
		t.VPERMD(from, t.words, v)
	}
	t.VPSHUFB(t.bytes, v, v)
	t.VPSLLVD(t.up, v, v)
	t.VPSRAD(operand.Imm(20), v, v)
	return v
}

func (g *gen) peakBits() {
	g.begin("peakBits", "func(x *float32, n int) uint32", "is the largest magnitude, as bits.")
	x, n := g.arg("x"), g.arg("n")
	magnitude, most := g.vector(), g.vector()
	g.ones(magnitude)
	g.VPSRLD(operand.Imm(1), magnitude, magnitude)
	g.zero(most)
	g.over("", n, 2, nil, func(l *lane, i int) {
		v := l.load(f32, x, i*g.vectorBytes())
		if l.one { // zeros after the first leave the other lanes unchanged
			v = v.AsY().(reg.VecVirtual)
		}
		if g.lanes == 16 {
			g.VPANDD(magnitude, v, v)
		} else {
			g.VPAND(magnitude, v, v)
		}
		g.VPMAXUD(v, most, most)
	}, g.advance(f32, []reg.GPVirtual{x}, nil))
	if g.lanes == 16 {
		h := g.YMM()
		g.VEXTRACTI64X4(operand.Imm(1), most, h)
		g.VPMAXUD(h, most.AsY(), h)
		most = h
	}
	q, p := g.XMM(), g.XMM()
	g.VEXTRACTI128(operand.Imm(1), most.AsY(), q)
	g.VPMAXUD(most.AsX(), q, q)
	g.VPSRLDQ(operand.Imm(8), q, p)
	g.VPMAXUD(p, q, q)
	g.VPSRLDQ(operand.Imm(4), q, p)
	g.VPMAXUD(p, q, q)
	w := g.GP32()
	g.VMOVD(q, w)
	g.Store(w, g.ReturnIndex(0))
	g.end()
}

// quantize generates a function that divides and rounds exactly as plain Go does, including the
// sign of zeros.
func (g *gen) quantize() {
	g.begin("quantize", "func(q *int16, rest, x *float32, scale, largest float32, n int)",
		"is q = x/scale as integers and rest = x - scale*q.")
	q, rest, x, n := g.arg("q"), g.arg("rest"), g.arg("x"), g.arg("n")
	scale, top := g.broadcastArg("scale"), g.broadcastArg("largest")
	low, magic := g.vector(), g.vector()
	g.zero(low)
	g.VSUBPS(top, low, low)
	g.broadcastConstant(0x4b400000, magic) // 1.5*2^23
	g.over("", n, 2, nil, func(l *lane, i int) {
		v, r := l.load(f32, x, i*g.vectorBytes()), l.vec()
		l.VDIVPS(l.fit(scale), v, r)
		l.VMAXPS(l.fit(low), r, r)
		l.VMINPS(l.fit(top), r, r)
		l.VADDPS(l.fit(magic), r, r)
		l.VSUBPS(l.fit(magic), r, r)
		p := l.vec()
		l.VMULPS(l.fit(scale), r, p)
		l.VSUBPS(p, v, v)
		l.store(f32, v, rest, i*g.vectorBytes())
		l.VCVTTPS2DQ(r, r)
		l.storeInt16(r, q, i*g.lanes*2)
	}, func(n int) {
		g.ADDQ(operand.I32(4*n), x)
		g.ADDQ(operand.I32(4*n), rest)
		g.ADDQ(operand.I32(2*n), q)
	})
	g.end()
}

func (g *gen) broadcastConstant(bits uint32, v reg.VecVirtual) {
	w, x := g.GP32(), g.XMM()
	g.MOVL(operand.U32(bits), w)
	g.VMOVD(w, x)
	g.VBROADCASTSS(x, v)
}

// storeInt16 writes 32-bit integers that fit in 16 bits. It destroys v.
func (l *lane) storeInt16(v reg.VecVirtual, base reg.Register, disp int) {
	m := at(base, disp)
	switch {
	case l.one:
		l.VPEXTRW(operand.Imm(0), v, m)
	case l.mask != nil:
		l.VPMOVDW(v, l.mask, m)
	case l.lanes == 16:
		l.VPMOVDW(v, m)
	default: // packs within halves of the register, then joins them
		l.VPACKSSDW(v, v, v)
		l.VPERMQ(operand.Imm(0x08), v, v)
		l.VMOVDQU(v.AsX(), m)
	}
}

// eightSums generates a loop that adds groups of eight numbers to eight F64 sums, which are in
// one or two registers.
func (g *gen) eightSums(n reg.GPVirtual, term func(part int) reg.VecVirtual, advance func()) {
	sums := make([]reg.VecVirtual, 16/g.lanes)
	for i := range sums {
		sums[i] = g.vector()
		g.zero(sums[i])
	}
	g.Label("eight")
	for i, s := range sums {
		g.VADDPD(term(i), s, s)
	}
	advance()
	g.SUBQ(operand.Imm(8), n)
	g.JNZ(operand.LabelRef("eight"))
	h := g.YMM()
	if g.lanes == 16 {
		g.VEXTRACTF64X4(operand.Imm(1), sums[0], h)
		g.VADDPD(h, sums[0].AsY(), h)
	} else {
		g.VADDPD(sums[1], sums[0], h)
	}
	q := g.XMM()
	g.VEXTRACTF128(operand.Imm(1), h, q)
	g.VADDPD(h.AsX(), q, q)
	g.VHADDPD(q, q, q)
	g.Store(q, g.ReturnIndex(0))
	g.end()
}

func (g *gen) squares() {
	g.begin("squares", "func(x *float32, n int) float64", "is the sum of squares of n numbers, a positive multiple of 8.")
	x, n := g.arg("x"), g.arg("n")
	g.eightSums(n, func(part int) reg.VecVirtual {
		v := g.vector()
		g.VCVTPS2PD(at(x, 16*part), v)
		g.VMULPD(v, v, v)
		return v
	}, func() { g.ADDQ(operand.Imm(32), x) })
}

func (g *gen) inner() {
	g.begin("inner", "func(x, y *float32, n int) float64", "is the sum of products of n numbers, a positive multiple of 8.")
	x, y, n := g.arg("x"), g.arg("y"), g.arg("n")
	g.eightSums(n, func(part int) reg.VecVirtual {
		v, w := g.vector(), g.vector()
		g.VCVTPS2PD(at(x, 16*part), v)
		g.VCVTPS2PD(at(y, 16*part), w)
		g.VMULPD(w, v, v)
		return v
	}, func() {
		g.ADDQ(operand.Imm(32), x)
		g.ADDQ(operand.Imm(32), y)
	})
}

func (g *gen) weighted() {
	g.begin("weighted", "func(v *int32, u *float32, n int) float64", "is the sum of (u*v)^2 over n numbers, a positive multiple of 8.")
	x, u, n := g.arg("v"), g.arg("u"), g.arg("n")
	g.eightSums(n, func(part int) reg.VecVirtual {
		v, w := g.vector(), g.vector()
		g.VCVTDQ2PD(at(x, 16*part), v)
		g.VCVTPS2PD(at(u, 16*part), w)
		g.VMULPD(w, v, v)
		g.VMULPD(v, v, v)
		return v
	}, func() {
		g.ADDQ(operand.Imm(32), x)
		g.ADDQ(operand.Imm(32), u)
	})
}

// gramHeight and gramVectors are the block of a Gram matrix that stays in registers.
const gramHeight, gramVectors = 4, 2

// gramRows generates a function that computes products of rows of 16-bit integers. The integers
// are stored in pairs of columns: first the pairs of all rows for columns 0 and 1, then those
// for columns 2 and 3, and so on.
func (g *gen) gramRows() {
	g.begin("gramRows", "func(sums *int32, lds int, a, b *uint32, ld, n int)",
		"is 4 rows of sums of products of integers over n pairs: those of a, by two vectors of b. Strides in bytes.")
	out, lds, a, b, ld, n := g.arg("sums"), g.arg("lds"), g.arg("a"), g.arg("b"), g.arg("ld"), g.arg("n")
	var sums [gramHeight][gramVectors]reg.VecVirtual
	for r := range sums {
		for c := range sums[r] {
			sums[r][c] = g.vector()
			g.zero(sums[r][c])
		}
	}
	g.Label("pair")
	var cols [gramVectors]reg.VecVirtual
	for c := range cols {
		cols[c] = g.vector()
		g.VMOVUPS(at(b, c*g.vectorBytes()), cols[c])
	}
	for r := range sums {
		row := g.vector()
		g.VPBROADCASTD(at(a, 4*r), row)
		for c, s := range sums[r] {
			p := g.vector()
			g.VPMADDWD(cols[c], row, p)
			g.VPADDD(p, s, s)
		}
	}
	g.ADDQ(ld, a)
	g.ADDQ(ld, b)
	g.DECQ(n)
	g.JNZ(operand.LabelRef("pair"))
	for r := range sums {
		for c, s := range sums[r] {
			g.VMOVUPS(s, at(out, c*g.vectorBytes()))
		}
		if r < gramHeight-1 {
			g.ADDQ(lds, out)
		}
	}
	g.end()
}
