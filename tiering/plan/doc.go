// Package plan carries out plans: it composes the states and rotates the rows of
// leased segments to where a prompt wants them, and keeps buffers of the rows that a
// decoding engine adds to them.
//
// A Geometry says where the parts of a profile's objects lie and how long answers
// are. A Session turns a query into jobs of gpuipc and runs them; Store, which the
// package tiering implements, finds what leases name and keeps it in its place
// meanwhile. Nothing here knows objects, pools or eviction.
//
// The memory of sources is the store's, that of destinations the caller's: neither
// may change until a call returns. All methods of a Geometry, a Runner and a Session
// may run at once.
package plan
