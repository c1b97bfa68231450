// Package gpucheck finds out what a GPU and its driver really do: whether every
// kernel agrees with the CPU's, how fast kernels and copies are beside a plain
// copy on the same device, whether memory reaches other processes by both ways,
// and whether the order contract holds under load. It is the library behind
// scripts/gpu-check, and tests run it over the fake driver, where its times mean
// nothing.
//
// A check adds rows to a report. One that fails says so in its row and the next
// one goes on; one that cannot run here says why.
package gpucheck
