// Package fakecuda builds, for tests, a libcuda.so.1 that needs no GPU: the
// driver's functions in C (folder src), over memory of the host. Go reaches it
// through package driver and Python through ctypes, both unchanged.
//
// It is as asynchronous as a driver: each stream is a thread with a queue. It
// shares memory between processes by descriptor and by handle. It refuses what a
// driver refuses (no current context, a handle between equal process ids,
// memory without access), and is harsh where a driver leaves the outcome open or
// does what no code here means to (work of one device on memory of another):
// fresh memory is all ones, memory that is freed under a queued operation is
// counted as misuse. It injects faults at any call, and counts what is live.
//
// Kernels are the sources of package kernels, compiled by the C++ compiler and
// run by name with the arguments that a GPU would get. A kernel that touches
// memory it may not touch breaks its context with error 700, as on a GPU.
//
// What it does not do: it says nothing about speed, blocks of a grid do not run
// at once, addresses of devices are addresses of the process (host code could
// follow them), and a descriptor on its way between processes counts for nobody.
package fakecuda
