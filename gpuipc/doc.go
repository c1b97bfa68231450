// Package gpuipc owns memory that several processes share, and the kernels that
// run on it: regions (public arenas, staging, private slots, imported engine
// memory), the page allocator over a region, copies, compose and rotate.
//
// It deals in bytes, pages, regions and rows of numbers, and knows no tokens,
// models or segments. Fields of block tables in cuda/kernels are named after
// tokens because an engine has one row per token. Device is the interface of
// all memory; the host device is the embedded default. Callers decide who may
// use which bytes when: gpuipc guards mappings, not meaning.
//
// A region belongs to its creator and lives until its Close. Every operation
// keeps the regions it uses mapped until it returns, and returns only after all
// its goroutines have finished with all memory. Regions of the host device are
// sealed memfds: a client can map them, but can neither resize them nor, for
// ClientReads, change a byte by any path.
//
// Devices and regions are safe for concurrent use, PageAllocator and Mapping
// are not. Callers must not run two operations that write the same bytes at
// once.
package gpuipc
