// Package driver calls NVIDIA's driver library, libcuda.so.1. The library is loaded at run
// time, so nothing of CUDA is needed to build. On a machine without a driver, Load returns
// gpuipc.ErrUnavailable. With the build tag nocuda, Load always does so and loads nothing.
//
// It is a thin layer: each method makes one call of the driver and returns its result as an
// *Error. The doc comment of a method that makes an object says who owns the object. Pools,
// streams to run on and deadlines belong to package cuda.
//
// Threads: a context is current on an operating system thread, not on a goroutine. All
// calls need a current context, except those about devices, the driver and contexts. Before
// such a call, the caller locks its goroutine to the thread (runtime.LockOSThread) and
// calls ContextSetCurrent. Otherwise the driver returns InvalidContext. Apart from this,
// several goroutines may call any method at once.
//
// Memory: a device address is a DevicePtr, which Go code cannot follow. Go memory that a
// call fills or reads is pinned for that call only. A copy on a stream reads or writes host
// memory after the call has returned. So this memory must be a mapping, or the caller must
// keep it pinned until the stream has finished the copy.
//
// Calls block. If the driver hangs, the calling thread hangs too, and the scheduler starts
// another thread. Nothing here can interrupt the call.
package driver
