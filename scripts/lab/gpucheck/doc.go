// Package gpucheck tests a GPU and its driver: whether every kernel gives the same results as on
// the CPU, how fast kernels and copies are compared with a plain copy on the same device,
// whether memory can be shared with other processes by descriptor and by IPC handle, and whether
// sequence numbers order the work of two processes under load. It is the library of
// scripts/gpu-check. Tests run it over the fake driver, where its times are meaningless.
//
// A check adds rows to a report. A failed check adds a row that says so, and the next check
// runs. A check that cannot run here adds a row that says why.
package gpucheck
