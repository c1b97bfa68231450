// Package fakecuda builds a libcuda.so.1 for tests that needs no GPU. It has the driver's
// functions in C (folder src), which work on memory of the host. Go loads it through
// package driver and Python through ctypes, and neither is changed for it.
//
// It is as asynchronous as a driver: each stream is a thread with a queue. It shares memory
// between processes by descriptor and by handle. It refuses what a driver refuses, such as
// calls without a current context, a handle between processes with equal ids, and memory
// without access. Where a driver leaves the result open, or allows what our code never does
// (work of one device on memory of another), it is strict: fresh memory is all ones, and
// freeing memory that a queued operation uses counts as misuse. It injects faults at any
// call, and counts live objects.
//
// Kernels are the sources of package kernels, compiled by the C++ compiler. They are
// launched by name, with the same arguments as on a GPU. A kernel that accesses forbidden
// memory breaks its context with error 700, as on a GPU.
//
// Limits: its speed means nothing; the blocks of a grid do not run concurrently; device
// addresses are addresses of the process, so host code could follow them; and descriptors
// that are being sent between processes are not counted.
package fakecuda
