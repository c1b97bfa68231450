// Package cuda provides the memory of one NVIDIA GPU and the kernels on it as a
// gpuipc.Accelerator. The driver library is loaded at run time. Without it, or
// with the build tag nocuda, Open returns gpuipc.ErrUnavailable and nothing
// else changes.
//
// Regions are made of physical chunks that are mapped one after the other and
// leave the process as POSIX descriptors, or of one allocation that leaves it
// as a 64-byte handle. Every process that imports a region can write it,
// whatever its RegionSpec.Access: CUDA has no read-only export. Data that a
// broken client must not destroy needs another copy, and a digest.
//
// Operations run in their callers: the calling thread is locked, the device's
// primary context made current on it, and the work put on a stream of a bounded
// pool, for which callers wait with their context. An operation has ended on
// the device when its call returns. Opening and closing memory of other
// processes has a deadline, because the driver may wait there for a process
// that does not answer.
//
// Two limits follow from the driver. A kernel or copy that never ends blocks
// its caller, since the memory it touches cannot be taken from it. And an
// operation checks its context between launches, about every millisecond of the
// device's work, not inside one.
//
// After a fatal error, such as a lost device, every later call is
// gpuipc.ErrUnavailable at once. Closing regions and the device still releases
// everything in this process.
//
// Everything is safe for concurrent use, except that Close of the device or of
// a region comes after all other uses.
package cuda
