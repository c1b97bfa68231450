// Package driver calls NVIDIA's driver library, libcuda.so.1, which is loaded at
// run time: nothing of CUDA is needed to build, and a machine without a driver
// answers Load with gpuipc.ErrUnavailable. With the build tag nocuda Load always
// does, and nothing is ever loaded.
//
// It is a thin layer: one method is one call of the driver, whose result becomes
// an *Error. Who owns what is said at the method that makes it; pools, streams
// to run on and deadlines belong to package cuda.
//
// Threads: a context is current on an operating system thread, not on a
// goroutine. Who calls anything that needs one (all but the calls about devices,
// the driver and contexts themselves) locks its goroutine to the thread
// (runtime.LockOSThread) and calls ContextSetCurrent first; without that the
// driver answers InvalidContext. Apart from this every method may be called from
// several goroutines at once.
//
// Memory: a device address is a DevicePtr, which Go code cannot follow. Go memory
// that a call fills or reads is pinned for that call and no longer. Copies on a
// stream read and write host memory after the call has returned, so that this
// memory must be a mapping or stay pinned by the caller until the stream is past
// them.
//
// Calls block: a driver that hangs takes the calling thread with it, and the
// scheduler starts another. Nothing here can interrupt it.
package driver
