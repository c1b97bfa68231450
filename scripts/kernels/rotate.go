package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The fields of type turning in the package, 8 bytes each, in this order.
const (
	turningDst = 8 * iota
	turningSrc
	turningCos
	turningSin
	turningRestCos
	turningRestSin
	turningItems
	turningBatch
	turningNow
	turningDstStride
	turningSrcStride
	turningHeadBytes
	turningHalf
	turningVectors
	turningRest
	turningCopy
)

// rotating is the state of one rotation function under construction.
//
// The function works on a batch of items at a time. Within a batch, the outer loop is over the
// dimensions and the inner loop over the items, so that cosines and sines stay in registers. If
// they were loaded for every vector, the decoding of instructions would be the limit (18 instead
// of 22 GB/s, measured).
type rotating struct {
	*lane
	dt          dtype
	interleaved bool
	t           reg.GPVirtual // *turning
	off         reg.GPVirtual // offset within a head, in bytes
	src, dst    reg.GPVirtual // at off of the current item
	half        reg.GPVirtual // distance from x to y of a pair, in bytes
	ahead       reg.GPVirtual // distance from an item to the same item of the next batch, in bytes

	// Constants for BF16. high selects the upper half of each number; tie is half a unit in the
	// last place of the result. The remaining constants are for 16-bit words.
	high, tie           reg.VecVirtual
	one                 reg.VecVirtual // 1 in each word
	but1                reg.VecVirtual // 0xfffe in each word
	moveUp              reg.VecVirtual // for the byte shuffle that moves bytes up
	evenWords, oddWords reg.OpmaskVirtual
}

// rotations generates functions that copy heads and rotate them on the way.
func (g *gen) rotations() {
	if g.lanes == 8 {
		g.upTable = g.StaticGlobal("shiftUpBytes")
		g.DataAttributes(rodata)
		for i := range 8 {
			at := uint32(4 * (i % 4)) // bytes at and at+1 become the upper two
			g.AppendDatum(operand.U32(0x8080 | at<<16 | (at+1)<<24))
		}
	}
	for _, dt := range []dtype{f32, f16, bf16} {
		g.rotation(dt, false)
		g.rotation(dt, true)
	}
}

func (g *gen) rotation(dt dtype, interleaved bool) {
	name, doc := "turnHalves", "copies items and turns x, y that are half the turn's dimensions apart."
	if interleaved {
		name, doc = "turnPairs", "copies items and turns x, y that are neighbours."
	}
	g.begin(name+dt.String(), "func(t *turning)", doc)
	r := &rotating{lane: &lane{gen: g}, dt: dt, interleaved: interleaved, t: g.arg("t"), off: g.GP64()}
	g.Label("batch")
	r.startBatch()
	r.vectors()
	if g.lanes == 8 { // the others are used for whole vectors only
		r.restOfPairs()
	}
	r.copyRest()
	r.nextBatch()
	g.end()
}

func (r *rotating) startBatch() {
	n := r.field(turningItems)
	r.CMPQ(n, at(r.t, turningBatch))
	r.CMOVQGT(at(r.t, turningBatch), n)
	r.MOVQ(n, at(r.t, turningNow))
	r.XORQ(r.off, r.off)
}

// nextBatch moves the pointers to the next batch if items are left, and otherwise leaves them:
// Go must not see a pointer past the end of its memory.
func (r *rotating) nextBatch() {
	n := r.field(turningNow)
	r.SUBQ(n, at(r.t, turningItems))
	r.JLE(operand.LabelRef("end"))
	src := r.field(turningSrcStride)
	r.IMULQ(n, src)
	r.ADDQ(src, at(r.t, turningSrc))
	r.IMULQ(at(r.t, turningDstStride), n)
	r.ADDQ(n, at(r.t, turningDst))
	r.JMP(operand.LabelRef("batch"))
	r.Label("end")
}

// setAhead computes the distance to the next batch.
func (r *rotating) setAhead() {
	r.ahead = r.field(turningNow)
	r.IMULQ(at(r.t, turningSrcStride), r.ahead)
}

func (r *rotating) field(off int) reg.GPVirtual {
	v := r.GP64()
	r.MOVQ(at(r.t, off), v)
	return v
}

// eachItem generates a loop over the items of a batch. In the code that body generates, src and
// dst point into the current item, at the offset off.
func (r *rotating) eachItem(label string, body func()) {
	r.src, r.dst = r.field(turningSrc), r.field(turningDst)
	r.ADDQ(r.off, r.src)
	r.ADDQ(r.off, r.dst)
	n := r.field(turningNow)
	srcStride, dstStride := r.field(turningSrcStride), r.field(turningDstStride)
	r.Label(label)
	body()
	r.ADDQ(srcStride, r.src)
	r.ADDQ(dstStride, r.dst)
	r.DECQ(n)
	r.JNZ(operand.LabelRef(label))
}

// pairs returns the number of pairs that the method vectors processes at a time.
func (g *gen) pairs() int { return 2 * g.lanes }

// vectors rotates pairs with cosines and sines in registers.
func (r *rotating) vectors() {
	end := r.field(turningVectors)
	r.CMPQ(r.off, end)
	r.JGE(operand.LabelRef("pairs"))
	if r.dt == bf16 {
		r.masks()
	}
	cosPointer, sinPointer := r.field(turningCos), r.field(turningSin)
	r.setAhead()
	if !r.interleaved {
		r.half = r.field(turningHalf)
	}
	r.Label("vectors")
	cos, sin := r.table(cosPointer), r.table(sinPointer)
	r.eachItem("vectorsOfItem", func() {
		switch {
		case r.dt == bf16 && r.interleaved:
			r.turnPairsBF16(cos, sin)
		case r.dt == bf16:
			r.turnHalvesBF16(cos, sin)
		case r.interleaved:
			r.turnPairsWide(cos, sin)
		default:
			r.turnHalvesWide(cos, sin)
		}
	})
	step := r.pairs() * r.dt.size()
	if r.interleaved {
		step *= 2
	}
	r.ADDQ(operand.I32(step), r.off)
	r.CMPQ(r.off, end)
	r.JLT(operand.LabelRef("vectors"))
	r.Label("pairs")
}

// table loads the next cosines or sines. For interleaved pairs in F32 and F16 the table has one
// for every number, otherwise one for every pair.
func (r *rotating) table(p reg.GPVirtual) []reg.VecVirtual {
	n := r.pairs()
	if r.interleaved && r.dt != bf16 {
		n *= 2
	}
	v := make([]reg.VecVirtual, n/r.lanes)
	for i := range v {
		v[i] = r.vector()
		r.VMOVUPS(at(p, i*r.vectorBytes()), v[i])
	}
	r.ADDQ(operand.I32(4*n), p)
	return v
}

// from returns the location of the first number (x) or, if y is set, of the second number of
// pairs, and prefetches the same location of the next batch's items. Without the prefetch,
// copying 128 MiB has 0.75 of the speed of a plain copy (measured), because the arithmetic fills
// the processor's window and leaves few loads in flight.
func (r *rotating) from(disp int, y bool) operand.Mem {
	if disp%64 == 0 {
		p := r.GP64()
		r.LEAQ(indexed(r.src, r.ahead, 1, 0), p)
		if y {
			r.PREFETCHT0(indexed(p, r.half, 1, disp))
		} else {
			r.PREFETCHT0(at(p, disp))
		}
	}
	if y {
		return indexed(r.src, r.half, 1, disp)
	}
	return at(r.src, disp)
}

func (r *rotating) to(disp int, y bool) operand.Mem {
	if y {
		return indexed(r.dst, r.half, 1, disp)
	}
	return at(r.dst, disp)
}

func (r *rotating) turnHalvesBF16(cos, sin []reg.VecVirtual) {
	x, y := r.loadRaw(r.from(0, false)), r.loadRaw(r.from(0, true))
	pe, qe := r.turn(r.even(x), r.even(y), cos[0], sin[0])
	po, qo := r.turn(r.odd(x), r.odd(y), cos[1], sin[1])
	r.storeRaw(r.joined(pe, po), r.to(0, false))
	r.storeRaw(r.joined(qe, qo), r.to(0, true))
}

func (r *rotating) turnPairsBF16(cos, sin []reg.VecVirtual) {
	for i := range cos {
		z := r.loadRaw(r.from(i*r.vectorBytes(), false))
		p, q := r.turn(r.even(z), r.odd(z), cos[i], sin[i])
		r.storeRaw(r.joined(p, q), r.to(i*r.vectorBytes(), false))
	}
}

func (r *rotating) turnHalvesWide(cos, sin []reg.VecVirtual) {
	for i := range cos {
		disp := i * r.lanes * r.dt.size()
		p, q := r.turn(r.wide(r.from(disp, false)), r.wide(r.from(disp, true)), cos[i], sin[i])
		r.storeWide(p, r.to(disp, false))
		r.storeWide(q, r.to(disp, true))
	}
}

// turnPairsWide rotates interleaved pairs of F32 or F16. It multiplies each number by a cosine,
// and the other number of its pair by a sine, and adds the products. The tables have a cosine
// and a sine for each number; the sine includes the sign of its product.
func (r *rotating) turnPairsWide(cos, sin []reg.VecVirtual) {
	for i := range cos {
		disp := i * r.lanes * r.dt.size()
		v, w := r.wide(r.from(disp, false)), r.vector()
		r.VPERMILPS(operand.Imm(0xb1), v, w) // neighbours are swapped
		r.VMULPS(sin[i], w, w)
		r.VFMADD231PS(cos[i], v, w)
		r.storeWide(w, r.to(disp, false))
	}
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
func (r *rotating) wide(m operand.Mem) reg.VecVirtual {
	v := r.vector()
	if r.dt == f16 {
		r.VCVTPH2PS(m, v)
	} else {
		r.VMOVUPS(m, v)
	}
	return v
}

func (r *rotating) storeWide(v reg.VecVirtual, m operand.Mem) {
	if r.dt == f16 {
		r.storeRaw(r.narrow(f16, v), m)
		return
	}
	r.storeRaw(v, m)
}

func (r *rotating) masks() {
	r.high, r.tie = r.vector(), r.vector()
	r.ones(r.high)
	if r.lanes == 16 {
		r.one, r.evenWords, r.oddWords = r.vector(), r.K(), r.K()
		r.VPSRLW(operand.Imm(15), r.high, r.one)
		r.VPSLLW(operand.Imm(15), r.high, r.tie)
		bits := r.GP32()
		r.MOVL(operand.U32(0x55555555), bits)
		r.KMOVD(bits, r.evenWords)
		r.NOTL(bits)
		r.KMOVD(bits, r.oddWords)
	} else {
		r.moveUp, r.but1 = r.vector(), r.vector()
		r.VMOVDQU(r.upTable, r.moveUp)
		r.VPADDW(r.high, r.high, r.but1)
		r.VPSRLD(operand.Imm(31), r.high, r.tie)
		r.VPSLLD(operand.Imm(15), r.tie, r.tie)
	}
	r.VPSLLD(operand.Imm(16), r.high, r.high)
}

// even and odd widen the BF16 numbers at even and odd places to F32, without crossing lanes.
func (r *rotating) even(v reg.VecVirtual) reg.VecVirtual {
	w := r.vector()
	r.up(v, w)
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

// up moves the lower half of each 32-bit number to its upper half. The AVX2 code uses a byte
// shuffle, because shifts would use the same ports as multiplications.
func (r *rotating) up(v, w reg.VecVirtual) {
	if r.lanes == 16 {
		r.VPSLLD(operand.Imm(16), v, w)
		return
	}
	r.VPSHUFB(r.moveUp, v, w)
}

// joined returns one vector of BF16 numbers: e, rounded, at the even places, and o, rounded, at
// the odd places. It gathers the upper halves of all numbers in one register and the lower
// halves in another, so that the rounding works on 16-bit words. NaN needs no special case:
// neither BF16 numbers nor the table have a NaN with bits in the lower half, so results have
// none either.
func (r *rotating) joined(e, o reg.VecVirtual) reg.VecVirtual {
	hi, lo := r.vector(), r.vector()
	if r.lanes == 16 {
		past := r.K()
		r.VPSRLD(operand.Imm(16), e, hi)
		r.up(o, lo)
		r.VMOVDQU16(o, r.oddWords, hi)
		r.VMOVDQU16(e, r.evenWords, lo)
		r.VPTERNLOGD(operand.Imm(0xf8), r.one, hi, lo) // lo | hi & 1
		r.VPCMPUW(operand.Imm(6), r.tie, lo, past)     // lo > tie
		r.VPADDW(r.one, hi, past, hi)
		return hi
	}
	// Half a unit is added first. If the lower bits are then zero, the number was a tie, and the
	// result is made even.
	r.VPADDD(r.tie, e, e)
	r.VPADDD(r.tie, o, o)
	r.VPSRLD(operand.Imm(16), e, hi)
	r.up(o, lo)
	r.VPBLENDW(operand.Imm(0xaa), o, hi, hi)
	r.VPBLENDW(operand.Imm(0xaa), lo, e, lo)
	r.VPADDUSW(r.but1, lo, lo) // 0xfffe for zero, else 0xffff
	r.VPAND(lo, hi, hi)
	return hi
}

// restOfPairs rotates pairs one by one.
func (r *rotating) restOfPairs() {
	n, cos, sin := r.field(turningRest), r.field(turningRestCos), r.field(turningRestSin)
	r.TESTQ(n, n)
	r.JZ(operand.LabelRef("copy"))
	one := &lane{gen: r.gen, one: true}
	if r.dt == bf16 {
		one.rne = r.rounding()
	}
	size, step := r.dt.size(), r.dt.size()
	if r.interleaved {
		step *= 2
	}
	r.Label("pair")
	c, s := one.load(f32, cos, 0), one.load(f32, sin, 0)
	r.eachItem("pairOfItem", func() {
		srcY, dstY := r.GP64(), r.GP64()
		if r.interleaved {
			r.LEAQ(at(r.src, size), srcY)
			r.LEAQ(at(r.dst, size), dstY)
		} else {
			r.MOVQ(at(r.t, turningHalf), srcY)
			r.LEAQ(indexed(r.dst, srcY, 1, 0), dstY)
			r.ADDQ(r.src, srcY)
		}
		p, q := one.turn(one.load(r.dt, r.src, 0), one.load(r.dt, srcY, 0), c, s)
		one.store(r.dt, p, r.dst, 0)
		one.store(r.dt, q, dstY, 0)
	})
	r.ADDQ(operand.Imm(uint64(step)), r.off)
	r.ADDQ(operand.Imm(4), cos)
	r.ADDQ(operand.Imm(4), sin)
	r.DECQ(n)
	r.JNZ(operand.LabelRef("pair"))
	r.Label("copy")
}

// copyRest copies the numbers that are not rotated: first four vectors at a time, then single
// vectors, then bytes.
func (r *rotating) copyRest() {
	size := r.field(turningHeadBytes)
	r.MOVQ(at(r.t, turningCopy), r.off)
	r.SUBQ(r.off, size)
	r.JLE(operand.LabelRef("done"))
	r.setAhead()
	r.eachItem("copyItem", func() {
		from, to, n := r.GP64(), r.GP64(), r.GP64()
		r.MOVQ(r.src, from)
		r.MOVQ(r.dst, to)
		r.MOVQ(size, n)
		r.copyVectors("copyFour", "copyOne", from, to, n, 4)
		r.copyVectors("copyOne", "copyByte", from, to, n, 1)
		r.loopWhile("copyByte", "copied", n, 1, func() {
			b := r.GP8()
			r.MOVB(at(from, 0), b)
			r.MOVB(b, at(to, 0))
			r.INCQ(from)
			r.INCQ(to)
		})
		r.Label("copied")
	})
	r.Label("done")
}

func (r *rotating) copyVectors(label, next string, from, to, n reg.GPVirtual, vectors int) {
	width := r.vectorBytes()
	r.loopWhile(label, next, n, vectors*width, func() {
		for disp := 0; disp < vectors*width; disp += width {
			if disp%64 == 0 {
				r.PREFETCHT0(indexed(from, r.ahead, 1, disp))
			}
			r.storeRaw(r.loadRaw(at(from, disp)), at(to, disp))
		}
		r.ADDQ(operand.I32(vectors*width), from)
		r.ADDQ(operand.I32(vectors*width), to)
	})
}
