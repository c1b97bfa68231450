package codec

import (
	"golang.org/x/sys/cpu"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// useAVX2 reports whether the processor has AVX2.
var useAVX2 = cpu.X86.HasAVX2

// vectorNumbers is the number of elements per step of the assembly. Plain Go processes
// the remaining elements.
const vectorNumbers = 32

func split(p *planes, src []byte, dt kernel.DType) {
	n := len(p[0]) / vectorNumbers * vectorNumbers
	if !useAVX2 || n == 0 {
		splitGeneric(p, src, dt)
		return
	}
	if dt == kernel.F32 {
		splitWordsAVX2(&p[0][0], &p[1][0], &p[2][0], &p[3][0], &src[0], n)
	} else {
		splitHalvesAVX2(&p[0][0], &p[1][0], &src[0], n)
	}
	rest := p.from(n, dt)
	splitGeneric(&rest, src[n*dt.Size():], dt)
}

func join(dst []byte, p *planes, dt kernel.DType) {
	n := len(p[0]) / vectorNumbers * vectorNumbers
	if !useAVX2 || n == 0 {
		joinGeneric(dst, p, dt)
		return
	}
	if dt == kernel.F32 {
		joinWordsAVX2(&dst[0], &p[0][0], &p[1][0], &p[2][0], &p[3][0], n)
	} else {
		joinHalvesAVX2(&dst[0], &p[0][0], &p[1][0], n)
	}
	rest := p.from(n, dt)
	joinGeneric(dst[n*dt.Size():], &rest, dt)
}

// The method from returns the planes without their first n bytes.
func (p planes) from(n int, dt kernel.DType) planes {
	for i := range dt.Size() {
		p[i] = p[i][n:]
	}
	return p
}
