// Package kernel has the arithmetic on cached state: composing linear-attention
// states, rotating keys, and dense products.
//
// Kernels take plain slices, strides and counts, and know no tokens, models or segments (an
// engine has one row for each token). They do not allocate on the hot path and never block.
// Plain Go (files *_generic.go) defines the results, and assembly must agree with it.
// Different goroutines may run kernels at once on different memory.
//
// The amd64 assembly is written by a program in scripts/kernels.
//
//go:generate go run -C ../../scripts/kernels . ../../gpuipc/kernel
package kernel

// DType is an element type of tensors that kernels read or write.
type DType uint8

// The element types.
const (
	F32  DType = 1
	F16  DType = 2
	BF16 DType = 3
)

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	return 0
}

// Transition is the form of the transition operator T of one head.
type Transition uint8

// Scalar T is one F32 number, Diagonal T is dk numbers, Dense T is [dk, dk]
// row-major and acts from the left: S' = T S + S_segment.
const (
	Scalar   Transition = 1
	Diagonal Transition = 2
	Dense    Transition = 3
)
