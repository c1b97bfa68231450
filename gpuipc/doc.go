// Package gpuipc owns memory that several processes share, and the kernels that
// run on it: regions (public arenas, staging, private slots, imported engine
// memory), the page allocator over a region, copies, compose and rotate.
//
// It handles bytes, pages, regions and rows of numbers, and knows no tokens, models or
// segments. (Fields of block tables in cuda/kernels are named after tokens, because an
// engine has one row per token.) All memory is used through the interface Device; the host
// device is the embedded default. gpuipc guarantees that memory stays mapped while it is
// used. Its callers decide who may use which bytes when.
//
// A region belongs to its creator and lives until its Close. Every operation keeps the
// regions it uses mapped until it returns. It returns only after all its goroutines have
// finished with all memory. Regions of the host device are sealed memfds. A client can map
// them, but it cannot resize them, and it cannot change a byte of a ClientReads region by
// any path.
//
// Devices and regions are safe for concurrent use; PageAllocator and Mapping are not.
// Callers must not run two operations at once that write the same bytes.
package gpuipc
