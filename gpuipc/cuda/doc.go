// Package cuda provides the memory of one NVIDIA GPU and the kernels on it as a
// gpuipc.Accelerator. The driver library is loaded at run time. Without it, or
// with the build tag nocuda, Open returns gpuipc.ErrUnavailable and nothing
// else changes.
//
// A region consists of physical chunks that are mapped one after the other, or of one
// allocation. Chunks are passed to other processes as POSIX descriptors, and an allocation
// as a 64-byte handle. Every process that imports a region can write to it, whatever its
// RegionSpec.Access, because CUDA has no read-only export. Data that a broken client must
// not destroy needs another copy, and a digest.
//
// Operations run in the goroutines of their callers. An operation locks the calling thread,
// makes the device's primary context current on it, and puts its work on a stream of a
// bounded pool. If no stream is free, the caller waits until one is, or until its
// context.Context ends. When a call returns, its operation has ended on the device. Opening
// and closing memory of other processes has a deadline, because the driver may wait for a
// process that does not answer.
//
// The driver imposes two limits. A kernel or copy that never ends blocks its caller,
// because the memory that it uses cannot be taken from it. And an operation checks its
// context only between launches, about every millisecond of the device's work.
//
// After a fatal error, such as a lost device, every later call returns
// gpuipc.ErrUnavailable at once. Closing regions and the device still releases everything
// in this process.
//
// Everything is safe for concurrent use, except that Close of the device or of a region
// must come after all other uses.
package cuda
