package flops

import "github.com/spliced-kv/spliced/policy/cost"

// Scan selects the last term of an SSM layer's work.
type Scan uint8

// The two forms of the last term of an SSM layer's work in Marconi. Table 1 of the paper
// prints 10 L, and the released code computes 10 L D.
const (
	ScanPaper Scan = iota
	ScanCode
)

// Uniform describes a model whose layers of a kind are equal and as wide as the
// hidden size, in the terms of Marconi's Table 1.
type Uniform struct {
	Hidden          int // D
	State           int // N
	AttentionLayers int
	SSMLayers       int
	MLPLayers       int
	ConvKernel      int // inputs kept by a convolution; 0 = no convolution
	Scan            Scan
}

// MarconiHybrid7B returns the model of Marconi's evaluation: 24 SSM, 4
// attention and 28 MLP layers, D = 4096, N = 128, 16-bit states and rows.
func MarconiHybrid7B(scan Scan) Shape {
	return Uniform{Hidden: 4096, State: 128, AttentionLayers: 4, SSMLayers: 24, MLPLayers: 28, ConvKernel: 4, Scan: scan}.Shape()
}

// Shape returns the shape with 2-byte elements. A convolution runs over the D
// inputs and the two N-vectors of an SSM, 2 D + 2 N channels as in Marconi's
// code.
func (u Uniform) Shape() Shape {
	d, n := float64(u.Hidden), float64(u.State)
	attention, ssm, mlp := float64(u.AttentionLayers), float64(u.SSMLayers), float64(u.MLPLayers)
	scan := 10.0
	if u.Scan == ScanCode {
		scan = 10 * d
	}
	const elementBytes = 2
	return Shape{
		Attention: Work{PerToken: attention * 8 * d * d, PerTokenSquared: attention * 4 * d},
		Linear:    Work{PerToken: ssm * (12*d*d + 16*d*n + scan)},
		MLP:       Work{PerToken: mlp * 16 * d * d},
		Shape: cost.Shape{
			KVBytes:    int64(u.AttentionLayers) * 2 * elementBytes * int64(u.Hidden),
			StateBytes: int64(u.SSMLayers) * elementBytes * int64(u.Hidden) * int64(u.State),
			ConvBytes:  int64(u.SSMLayers) * elementBytes * int64(u.ConvKernel) * 2 * int64(u.Hidden+u.State),
		},
	}
}
