// Package gpuipc owns memory that several processes share, and the kernels that
// run on it: regions (public arenas, staging, private slots, imported engine
// memory), the page allocator over a region, copies, compose and rotate.
//
// It speaks of bytes, pages and regions and has never heard of tokens, models
// or segments. Device is the interface that every memory implements; the host
// device is the embedded default. Who may use which bytes when is decided by
// the callers: gpuipc guards mappings, not meaning.
package gpuipc
