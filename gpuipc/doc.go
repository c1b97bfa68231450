// Package gpuipc owns memory that several processes share, and the kernels that
// run on it: regions (public arenas, staging, private slots, imported engine
// memory), the page allocator over a region, copies, compose and rotate.
//
// It speaks of bytes, pages, regions and rows of numbers and has never heard of
// tokens, models or segments: that an engine has a row for each token, and names
// fields of its block tables after them (cuda/kernels), is the engine's matter.
// Device is the interface that every memory implements; the host device is the
// embedded default. Who may use which bytes when is decided by the callers: gpuipc
// guards mappings, not meaning.
//
// A region belongs to who made it and lives until its Close; every operation
// keeps the regions it uses mapped until it returns, and no operation returns
// before all its goroutines have let go of all memory. Regions of the host
// device are sealed memfds: a client can map them, but can neither resize them
// nor, for ClientReads, change a byte by any path.
//
// Devices and regions are safe for concurrent use, PageAllocator and Mapping are
// not. Two operations that write the same bytes at once are the callers' error.
package gpuipc
