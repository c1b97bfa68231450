package kernel

import "golang.org/x/sys/cpu"

// isa is an instruction set with kernels.
type isa uint8

const (
	plainGo isa = iota // no assembly
	avx2               // AVX2, FMA and F16C
	avx512             // F, BW, VL and DQ on top
)

// active is the best instruction set of this processor. Only tests change it.
var active = detect()

func detect() isa {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA || !x.HasF16C:
		return plainGo
	case x.HasBMI2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ:
		return avx512
	}
	return avx2
}

// Features returns the instruction sets of the kernels, widest last.
func Features() []string {
	return [][]string{nil, {"fma", "f16c", "avx2"}, {"fma", "f16c", "avx2", "avx512"}}[active]
}
