// Package fakecuda builds, for tests, a libcuda.so.1 that needs no GPU: the
// driver's functions in C (folder src), over memory of the host. Go loads it
// through package driver and Python through ctypes, both unchanged.
//
// It is as asynchronous as a driver: each stream is a thread with a queue. It
// shares memory between processes by descriptor and by handle. It refuses what
// a driver refuses (no current context, a handle between equal process ids,
// memory without access). Where a driver leaves the outcome open, or allows
// what our code never does (work of one device on memory of another), it is
// strict: fresh memory is all ones, and freeing memory of a queued operation
// counts as misuse. It injects faults at any call, and counts live objects.
//
// Kernels are the sources of package kernels, compiled by the C++ compiler and
// run by name with the arguments of a GPU. A kernel that touches forbidden
// memory breaks its context with error 700, as on a GPU.
//
// Limits: its speed means nothing, blocks of a grid do not run concurrently,
// device addresses are addresses of the process (host code could follow them),
// and a descriptor in flight between processes is not counted.
package fakecuda
