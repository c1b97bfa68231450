// Package gpucheck tests a GPU and its driver: whether every kernel agrees with the CPU's,
// how fast kernels and copies are compared with a plain copy on the same device, whether
// memory can be shared with other processes in both ways, and whether the ordering contract
// holds under load. It is the library of scripts/gpu-check. Tests run it over the fake
// driver, where its times are meaningless.
//
// A check adds rows to a report. If it fails, its row says so and the next check runs; if
// it cannot run here, its row says why.
package gpucheck
