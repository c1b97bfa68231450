// Package plan carries out plans. A plan composes the states of leased segments and
// rotates their rows to their positions in a prompt. The package also keeps buffers of the
// rows that a decoding engine appends.
//
// A Geometry has the layouts of a profile's objects and the sizes of results. A Session
// turns a query into jobs of gpuipc and runs them. Store, which package tiering
// implements, resolves leases and keeps the leased objects in place meanwhile. Nothing
// here knows objects, pools or eviction.
//
// The store owns the memory that a call reads, and the caller owns the memory that the
// call writes to. Neither may change until the call returns. All methods of a Geometry, a
// Runner and a Session may be called concurrently.
package plan
