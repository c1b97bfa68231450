// Package plan carries out plans: it composes the states and rotates the rows of leased
// segments to their positions in a prompt, and keeps buffers of the rows that a decoding
// engine appends.
//
// A Geometry has the layouts of a profile's objects and the sizes of results. A Session
// turns a query into jobs of gpuipc and runs them. Store, which package tiering
// implements, resolves leases and keeps the leased objects in place meanwhile. Nothing
// here knows objects, pools or eviction.
//
// The memory of sources belongs to the store, that of destinations to the caller: neither
// may change until a call returns. All methods of a Geometry, a Runner and a Session may
// be called concurrently.
package plan
