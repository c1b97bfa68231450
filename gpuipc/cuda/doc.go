// Package cuda is the memory of one NVIDIA GPU and the kernels on it, as a
// gpuipc.Accelerator. The driver library is loaded at run time; without it, or
// with the build tag nocuda, Open answers gpuipc.ErrUnavailable and nothing else
// changes.
//
// Regions are made of physical chunks that are mapped one behind the other and
// leave the process as POSIX descriptors, or of one allocation that leaves it as
// a 64-byte handle. Every process that imports a region can write it, whatever
// its RegionSpec.Access: CUDA has no read-only export. What must not be lost to
// a broken client needs another copy, and a digest.
//
// Operations run in their callers: the calling thread is locked, the device's
// primary context made current on it, and the work put on a stream of a bounded
// pool, where callers wait with their context. An operation has ended on the
// device when its call returns. Opening and closing memory of other processes
// runs behind a deadline, because the driver may wait there for a process that
// does not answer.
//
// Two limits follow from what the driver offers. A kernel or copy that never ends
// holds its caller, since the memory it touches cannot be taken from it. And an
// operation looks at its context between launches, about every millisecond of the
// device's work, not inside one.
//
// An error after which the driver gives no more service, such as a lost device,
// makes every later call gpuipc.ErrUnavailable at once. Closing regions and the
// device still lets go of everything on our side.
//
// Everything is safe for concurrent use, except that Close of the device or of a
// region comes after all else that uses it.
package cuda
