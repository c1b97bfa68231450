// Package enginekernel has an engine's arithmetic on the CPU: attention over runs of cached
// rows, and decoding with a buffer of recent rows next to a state. The daemon does neither.
//
// As in gpuipc/kernel, plain Go (buffer_generic.go) defines the results, and assembly must
// agree with it.
//
//go:generate go run -C ../../../kernels . ../lab/refengine/enginekernel
package enginekernel
