package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The fields of type turning in the package, 8 bytes each, in this order.
const (
	fieldDst = 8 * iota
	fieldSrc
	fieldCos
	fieldSin
	fieldRestCos
	fieldRestSin
	fieldRows
	fieldHeads
	fieldRowStride
	fieldHeadStride
	fieldHeadBytes
	fieldHalf
	fieldVectors
	fieldRest
	fieldCopy
)

// rotating is the state of one rotation function under construction.
type rotating struct {
	*lane
	dt          dtype
	interleaved bool
	t           reg.GPVirtual
	dst, src    reg.GPVirtual // of the head, where x is
	dstY, srcY  reg.GPVirtual // where y is
	off         reg.GPVirtual // in the head, bytes
	cos, sin    reg.GPVirtual
	// For BF16: the upper half of each number, 1 and 0x8000 in each word, and masks
	// of words.
	high, one, tie      reg.VecVirtual
	evenWords, oddWords reg.OpmaskVirtual
}

// rotations makes the copies that turn heads. Every product is rounded by itself,
// as in plain Go, so that the bits are the same.
func (g *gen) rotations() {
	for _, dt := range []dtype{f32, f16, bf16} {
		for _, interleaved := range []bool{false, true} {
			g.rotation(dt, interleaved)
		}
	}
}

func (g *gen) rotation(dt dtype, interleaved bool) {
	name, doc := "turnHalves", "copies rows of heads and turns x, y that are half a turn's dimensions apart."
	if interleaved {
		name, doc = "turnPairs", "copies rows of heads and turns x, y that are neighbours."
	}
	name += dt.String()
	g.begin(name, "func(t *turning)", doc)
	r := &rotating{lane: &lane{gen: g}, dt: dt, interleaved: interleaved, t: g.arg("t")}
	if dt == bf16 {
		r.masks()
	}
	row := r.field(fieldDst)
	r.src = r.field(fieldSrc)
	r.off = g.GP64()

	g.Label("row")
	heads := r.field(fieldHeads)
	r.dst = g.GP64()
	g.MOVQ(row, r.dst)
	g.Label("head")
	r.vectors()
	if g.lanes == 8 { // the others are used for whole vectors only
		r.restOfPairs()
	}
	r.copyRest()
	g.ADDQ(at(r.t, fieldHeadBytes), r.src)
	g.ADDQ(at(r.t, fieldHeadStride), r.dst)
	g.DECQ(heads)
	g.JNZ(operand.LabelRef("head"))
	g.ADDQ(at(r.t, fieldRowStride), row)
	g.DECQ(at(r.t, fieldRows))
	g.JNZ(operand.LabelRef("row"))
	g.end()
}

func (r *rotating) field(off int) reg.GPVirtual {
	v := r.GP64()
	r.MOVQ(at(r.t, off), v)
	return v
}

func (r *rotating) masks() {
	r.high, r.one = r.vector(), r.vector()
	r.ones(r.high)
	r.VPSRLW(operand.Imm(15), r.high, r.one)
	if r.lanes == 16 {
		r.tie, r.evenWords, r.oddWords = r.vector(), r.K(), r.K()
		r.VPSLLW(operand.Imm(15), r.high, r.tie)
		bits := r.GP32()
		r.MOVL(operand.U32(0x55555555), bits)
		r.KMOVD(bits, r.evenWords)
		r.NOTL(bits)
		r.KMOVD(bits, r.oddWords)
	}
	r.VPSLLD(operand.Imm(16), r.high, r.high)
}

// vectors turns the leading pairs, a vector of numbers at a time.
func (r *rotating) vectors() {
	r.cos, r.sin = r.field(fieldCos), r.field(fieldSin)
	if !r.interleaved {
		r.srcY, r.dstY = r.field(fieldHalf), r.field(fieldHalf)
		r.ADDQ(r.src, r.srcY)
		r.ADDQ(r.dst, r.dstY)
	}
	end, step := r.field(fieldVectors), r.lanes*r.dt.size()
	if r.dt == bf16 {
		step *= 2
	}
	r.XORQ(r.off, r.off)
	r.CMPQ(r.off, end)
	r.JGE(operand.LabelRef("pairs"))
	r.Label("vector")
	switch {
	case r.dt == bf16 && r.interleaved:
		z := r.loadRaw(r.from(false))
		p, q := r.turn(r.even(z), r.odd(z), r.table(r.cos, 1, 0), r.table(r.sin, 1, 0))
		r.storeRaw(r.joined(p, q), r.to(false))
	case r.dt == bf16:
		x, y := r.loadRaw(r.from(false)), r.loadRaw(r.from(true))
		half := r.vectorBytes()
		pe, qe := r.turn(r.even(x), r.even(y), r.table(r.cos, 2, 0), r.table(r.sin, 2, 0))
		po, qo := r.turn(r.odd(x), r.odd(y), r.table(r.cos, 2, half), r.table(r.sin, 2, half))
		r.storeRaw(r.joined(pe, po), r.to(false))
		r.storeRaw(r.joined(qe, qo), r.to(true))
	case r.interleaved: // the sines' signs alternate in the table
		v, w := r.wide(false), r.vec()
		r.swapPairs(v, w)
		scale := uint8(4 / r.dt.size())
		r.VMULPS(r.table(r.cos, scale, 0), v, v)
		r.VMULPS(r.table(r.sin, scale, 0), w, w)
		r.VADDPS(w, v, v)
		r.storeWide(v, false)
	default:
		scale := uint8(4 / r.dt.size())
		p, q := r.turn(r.wide(false), r.wide(true), r.table(r.cos, scale, 0), r.table(r.sin, scale, 0))
		r.storeWide(p, false)
		r.storeWide(q, true)
	}
	r.ADDQ(operand.Imm(uint64(step)), r.off)
	r.CMPQ(r.off, end)
	r.JLT(operand.LabelRef("vector"))
	r.Label("pairs")
}

// fetchAhead is how far before the reader the source is asked for. The arithmetic
// fills the processor's window, so that on its own it sees too few loads ahead:
// without, 128 MiB go at 0.75 of a plain copy's speed (measured).
const fetchAhead = 2048

// from is where x or y is read, to where it is written.
func (r *rotating) from(y bool) operand.Mem {
	m := indexed(r.src, r.off, 1, 0)
	if y {
		m.Base = r.srcY
	}
	next := m
	next.Disp = fetchAhead
	r.PREFETCHT0(next)
	return m
}

func (r *rotating) to(y bool) operand.Mem {
	if y {
		return indexed(r.dstY, r.off, 1, 0)
	}
	return indexed(r.dst, r.off, 1, 0)
}

func (r *rotating) table(base reg.GPVirtual, scale uint8, disp int) operand.Op {
	return indexed(base, r.off, scale, disp)
}

func (r *rotating) loadRaw(m operand.Mem) reg.VecVirtual {
	v := r.vector()
	if r.lanes == 16 {
		r.VMOVDQU64(m, v)
	} else {
		r.VMOVDQU(m, v)
	}
	return v
}

func (r *rotating) storeRaw(v reg.Register, m operand.Mem) {
	if v.Size() == 64 {
		r.VMOVDQU64(v, m)
		return
	}
	r.VMOVDQU(v, m)
}

// wide reads F32 or F16 numbers as F32, storeWide writes them.
func (r *rotating) wide(y bool) reg.VecVirtual {
	v := r.vector()
	if r.dt == f16 {
		r.VCVTPH2PS(r.from(y), v)
	} else {
		r.VMOVUPS(r.from(y), v)
	}
	return v
}

func (r *rotating) storeWide(v reg.VecVirtual, y bool) {
	if r.dt == f16 {
		r.storeRaw(r.narrow(f16, v), r.to(y))
		return
	}
	r.storeRaw(v, r.to(y))
}

func (r *rotating) swapPairs(v, w reg.VecVirtual) { r.VPERMILPS(operand.Imm(0xb1), v, w) }

// even and odd widen every other BF16 number, without moving across lanes.
func (r *rotating) even(v reg.VecVirtual) reg.VecVirtual {
	w := r.vector()
	r.VPSLLD(operand.Imm(16), v, w)
	return w
}

func (r *rotating) odd(v reg.VecVirtual) reg.VecVirtual {
	w := r.vector()
	if r.lanes == 16 {
		r.VPANDD(r.high, v, w)
	} else {
		r.VPAND(r.high, v, w)
	}
	return w
}

// joined rounds e and o to BF16 and puts them in even and odd places. The upper
// and the lower halves of the numbers are gathered first and rounding is done on
// 16 bits: up when the lower half, with the last kept bit as sticky bit, is past
// the tie. NaN needs no care: results are NaN only with zeros in the lower half,
// since BF16 numbers and the table have no others.
func (r *rotating) joined(e, o reg.VecVirtual) reg.VecVirtual {
	hi, lo := r.vector(), r.vector()
	r.VPSRLD(operand.Imm(16), e, hi)
	r.VPSLLD(operand.Imm(16), o, lo)
	if r.lanes == 16 {
		up := r.K()
		r.VMOVDQU16(o, r.oddWords, hi)
		r.VMOVDQU16(e, r.evenWords, lo)
		r.VPTERNLOGD(operand.Imm(0xf8), r.one, hi, lo) // lo | hi & 1
		r.VPCMPUW(operand.Imm(6), r.tie, lo, up)       // lo > tie
		r.VPADDW(r.one, hi, up, hi)
		return hi
	}
	sticky := r.vector()
	r.VPBLENDW(operand.Imm(0xaa), o, hi, hi)
	r.VPBLENDW(operand.Imm(0xaa), lo, e, lo)
	r.VPAND(r.one, hi, sticky)
	r.VPOR(sticky, lo, lo)
	r.VPSUBUSW(r.one, lo, lo) // past the tie: still has the sign bit
	r.VPSRLW(operand.Imm(15), lo, lo)
	r.VPADDW(lo, hi, hi)
	return hi
}

// restOfPairs turns what is less than a vector, pair by pair.
func (r *rotating) restOfPairs() {
	n := r.field(fieldRest)
	cos, sin := r.field(fieldRestCos), r.field(fieldRestSin)
	src, dst := r.GP64(), r.GP64()
	r.LEAQ(indexed(r.src, r.off, 1, 0), src)
	r.LEAQ(indexed(r.dst, r.off, 1, 0), dst)
	rne := &rounding{}
	if r.dt == bf16 {
		r.TESTQ(n, n)
		r.JZ(operand.LabelRef("copy"))
		rne = r.rounding()
	}
	one := &lane{gen: r.gen, one: true, rne: rne}
	size := r.dt.size()
	r.loopWhile("pair", "copy", n, 1, func() {
		ySrc, yDst, step := r.GP64(), r.GP64(), size
		if r.interleaved {
			r.LEAQ(at(src, size), ySrc)
			r.LEAQ(at(dst, size), yDst)
			step = 2 * size
		} else {
			for _, p := range [][2]reg.GPVirtual{{src, ySrc}, {dst, yDst}} {
				r.MOVQ(at(r.t, fieldHalf), p[1])
				r.ADDQ(p[0], p[1])
			}
		}
		p, q := one.turn(one.load(r.dt, src, 0), one.load(r.dt, ySrc, 0), one.load(f32, cos, 0), one.load(f32, sin, 0))
		one.store(r.dt, p, dst, 0)
		one.store(r.dt, q, yDst, 0)
		r.ADDQ(operand.Imm(uint64(step)), src)
		r.ADDQ(operand.Imm(uint64(step)), dst)
		r.ADDQ(operand.Imm(4), cos)
		r.ADDQ(operand.Imm(4), sin)
	})
	r.Label("copy")
}

// copyRest copies the head from t.copyFrom on: four vectors at a time, vectors,
// bytes.
func (r *rotating) copyRest() {
	end, width, last := r.field(fieldHeadBytes), r.vectorBytes(), r.GP64()
	r.MOVQ(at(r.t, fieldCopy), r.off)
	for _, c := range []struct {
		label, next string
		vectors     int
	}{{"copyFour", "copyOne", 4}, {"copyOne", "copyByte", 1}} {
		r.LEAQ(at(end, -c.vectors*width), last)
		r.Label(c.label)
		r.CMPQ(r.off, last)
		r.JG(operand.LabelRef(c.next + "Start"))
		for i := range c.vectors {
			from, to := r.from(false), r.to(false)
			from.Disp, to.Disp = i*width, i*width
			r.storeRaw(r.loadRaw(from), to)
		}
		r.ADDQ(operand.I32(c.vectors*width), r.off)
		r.JMP(operand.LabelRef(c.label))
		r.Label(c.next + "Start")
	}
	r.Label("copyByte")
	r.CMPQ(r.off, end)
	r.JGE(operand.LabelRef("headDone"))
	b := r.GP8()
	r.MOVB(indexed(r.src, r.off, 1, 0), b)
	r.MOVB(b, indexed(r.dst, r.off, 1, 0))
	r.INCQ(r.off)
	r.JMP(operand.LabelRef("copyByte"))
	r.Label("headDone")
}
