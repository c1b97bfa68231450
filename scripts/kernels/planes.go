package main

import (
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// generatePlanes writes functions that split numbers into byte planes, and that join planes into
// numbers. A plane has the bytes at one position of all numbers. The count of numbers must be a
// multiple of 32.
func generatePlanes(folder string) error {
	g := &gen{Context: build.NewContext(), isa: "AVX2", lanes: 8}
	g.byteTable = g.StaticGlobal("transposeBytes")
	g.DataAttributes(rodata)
	for i := range 32 {
		g.AppendDatum(operand.U8(i%4*4 + i/4%4))
	}
	g.splitHalves()
	g.joinHalves()
	g.splitWords()
	g.joinWords()
	return write(g.Context, "codec", filepath.Join(folder, "planes_avx2_amd64"))
}

// planeStep is the count of numbers that an iteration of the loops below processes: as many as a
// vector has bytes.
const planeStep = 32

// turns generates a loop that runs body for each planeStep of n numbers; n is not 0. moved lists
// the pointers to advance, by the size of their elements in bytes.
func (g *gen) turns(n reg.GPVirtual, body func(), moved map[int][]reg.GPVirtual) {
	g.Label("turn")
	body()
	for _, size := range []int{1, 2, 4} {
		for _, p := range moved[size] {
			g.ADDQ(operand.I32(planeStep*size), p)
		}
	}
	g.SUBQ(operand.I32(planeStep), n)
	g.JNZ(operand.LabelRef("turn"))
	g.end()
}

func (g *gen) load256(base reg.Register, disp int) reg.VecVirtual {
	v := g.YMM()
	g.VMOVDQU(at(base, disp), v)
	return v
}

// lowBytes returns 255 in every 16 bits, lowBits returns 1 in every byte.
func (g *gen) lowBytes() reg.VecVirtual {
	v := g.YMM()
	g.VPCMPEQD(v, v, v)
	g.VPSRLW(operand.Imm(8), v, v)
	return v
}

func (g *gen) lowBits() reg.VecVirtual {
	v := g.YMM()
	g.VPCMPEQD(v, v, v)
	g.VPABSB(v, v)
	return v
}

func (g *gen) splitHalves() {
	g.begin("splitHalves", "func(p0, p1, src *byte, n int)", "rotates 16-bit numbers left by one, then puts upper and lower bytes apart.")
	p0, p1, src, n := g.arg("p0"), g.arg("p1"), g.arg("src"), g.arg("n")
	low := g.lowBytes()
	g.turns(n, func() {
		var upper, lower [2]reg.VecVirtual
		for i := range 2 {
			v, high := g.load256(src, 32*i), g.YMM()
			g.VPSRLW(operand.Imm(15), v, high)
			g.VPADDW(v, v, v)
			g.VPOR(high, v, v)
			upper[i], lower[i] = g.YMM(), g.YMM()
			g.VPSRLW(operand.Imm(8), v, upper[i])
			g.VPAND(low, v, lower[i])
		}
		g.storePacked(p0, upper)
		g.storePacked(p1, lower)
	}, map[int][]reg.GPVirtual{1: {p0, p1}, 2: {src}})
}

// storePacked writes the lower byte of each of 32 16-bit numbers. Their upper bytes must be
// zero.
func (g *gen) storePacked(dst reg.Register, v [2]reg.VecVirtual) {
	g.VPACKUSWB(v[1], v[0], v[0]) // within 128-bit halves: the middle quarters are swapped
	g.VPERMQ(operand.Imm(0b11_01_10_00), v[0], v[0])
	g.VMOVDQU(v[0], at(dst, 0))
}

func (g *gen) joinHalves() {
	g.begin("joinHalves", "func(dst, p0, p1 *byte, n int)", "is the reverse of splitHalvesAVX2.")
	dst, p0, p1, n := g.arg("dst"), g.arg("p0"), g.arg("p1"), g.arg("n")
	g.turns(n, func() {
		upper, lower := g.load256(p0, 0), g.load256(p1, 0)
		for _, v := range []reg.VecVirtual{upper, lower} {
			g.VPERMQ(operand.Imm(0b11_01_10_00), v, v)
		}
		v := [2]reg.VecVirtual{g.YMM(), g.YMM()}
		g.VPUNPCKLBW(upper, lower, v[0])
		g.VPUNPCKHBW(upper, lower, v[1])
		for i := range 2 {
			down := g.YMM()
			g.VPSRLW(operand.Imm(1), v[i], down)
			g.VPSLLW(operand.Imm(15), v[i], v[i])
			g.VPOR(down, v[i], v[i])
			g.VMOVDQU(v[i], at(dst, 32*i))
		}
	}, map[int][]reg.GPVirtual{1: {p0, p1}, 2: {dst}})
}

// wordTables has the tables to convert 32 numbers of 4 bytes to 4 planes and back. transpose
// transposes 4x4 bytes in each 128 bits and is its own inverse. order permutes 32-bit lanes.
type wordTables struct{ transpose, order reg.VecVirtual }

// tables loads both tables.
func (g *gen) tables(name string, order [8]uint32) wordTables {
	places := g.StaticGlobal("places" + name)
	g.DataAttributes(rodata)
	for _, p := range order {
		g.AppendDatum(operand.U32(p))
	}
	t := wordTables{g.YMM(), g.YMM()}
	g.VMOVDQU(g.byteTable, t.transpose)
	g.VMOVDQU(places, t.order)
	return t
}

// transposed returns the 4x4 transpose of 32-bit numbers in each 128 bits of v.
func (g *gen) transposed(v [4]reg.VecVirtual) (out [4]reg.VecVirtual) {
	var half [4]reg.VecVirtual
	for i := range 4 {
		half[i], out[i] = g.YMM(), g.YMM()
	}
	for i := range 2 {
		g.VPUNPCKLDQ(v[2*i+1], v[2*i], half[2*i])
		g.VPUNPCKHDQ(v[2*i+1], v[2*i], half[2*i+1])
	}
	for i := range 2 {
		g.VPUNPCKLQDQ(half[2+i], half[i], out[2*i])
		g.VPUNPCKHQDQ(half[2+i], half[i], out[2*i+1])
	}
	return out
}

func (g *gen) splitWords() {
	g.begin("splitWords", "func(p0, p1, p2, p3, src *byte, n int)", "puts the bytes of 32-bit numbers apart, highest first, the upper 16 bits rotated left by one.")
	p := []reg.GPVirtual{g.arg("p0"), g.arg("p1"), g.arg("p2"), g.arg("p3")}
	src, n := g.arg("src"), g.arg("n")
	t, one := g.tables("Split", [8]uint32{0, 4, 1, 5, 2, 6, 3, 7}), g.lowBits()
	g.turns(n, func() {
		var v [4]reg.VecVirtual
		for i := range v {
			v[i] = g.load256(src, 32*i)
			g.VPSHUFB(t.transpose, v[i], v[i])
		}
		v = g.transposed(v) // the lowest plane first
		for i := range v {
			g.VPERMD(v[i], t.order, v[i])
		}
		v[3], v[2] = g.shiftedUp(v[3], v[2], one), g.shiftedUp(v[2], v[3], one)
		for i := range v {
			g.VMOVDQU(v[3-i], at(p[i], 0))
		}
	}, map[int][]reg.GPVirtual{1: p, 4: {src}})
}

// shiftedUp returns every byte of v shifted up by one bit. The lowest bit of each byte becomes
// the highest bit of the same byte of the register from.
func (g *gen) shiftedUp(v, from, one reg.VecVirtual) reg.VecVirtual {
	up, bit := g.YMM(), g.YMM()
	g.VPADDB(v, v, up)
	g.VPSRLW(operand.Imm(7), from, bit)
	g.VPAND(one, bit, bit)
	g.VPOR(bit, up, up)
	return up
}

func (g *gen) joinWords() {
	g.begin("joinWords", "func(dst, p0, p1, p2, p3 *byte, n int)", "is the reverse of splitWordsAVX2.")
	dst, n := g.arg("dst"), g.arg("n")
	p := []reg.GPVirtual{g.arg("p0"), g.arg("p1"), g.arg("p2"), g.arg("p3")}
	t, one := g.tables("Join", [8]uint32{0, 2, 4, 6, 1, 3, 5, 7}), g.lowBits()
	g.turns(n, func() {
		upper, lower := g.load256(p[0], 0), g.load256(p[1], 0)
		v := [4]reg.VecVirtual{g.load256(p[3], 0), g.load256(p[2], 0), g.shiftedDown(lower, upper, one), g.shiftedDown(upper, lower, one)}
		for i := range v {
			g.VPERMD(v[i], t.order, v[i])
		}
		v = g.transposed(v)
		for i := range v {
			g.VPSHUFB(t.transpose, v[i], v[i])
			g.VMOVDQU(v[i], at(dst, 32*i))
		}
	}, map[int][]reg.GPVirtual{1: p, 4: {dst}})
}

// shiftedDown returns every byte of v shifted down by one bit. The highest bit of each byte
// becomes the lowest bit of the same byte of the register from.
func (g *gen) shiftedDown(v, from, one reg.VecVirtual) reg.VecVirtual {
	down, bit := g.YMM(), g.YMM()
	g.VPANDN(v, one, down) // without the bits that would move into the byte below
	g.VPSRLW(operand.Imm(1), down, down)
	g.VPAND(one, from, bit)
	g.VPSLLW(operand.Imm(7), bit, bit)
	g.VPOR(bit, down, down)
	return down
}
