// Package refengine is a small, exact, readable language model with hybrid attention. It is the
// engine with which spliced is tested without a GPU, and the oracle for engine adapters. It runs
// every linear-attention family of HYPIC Table 1 together with full attention, captures
// segments, and splices cached segments into a prompt by walking the layers over the recomputed
// rows only (HYPIC §4.2 and §4.3).
//
// One code path computes everything. A walk moves the rows of one or more recomputed spans
// through all layers. An interface, the surroundings of the walk, provides the state before each
// span. In a plain prefill, the walk has one span, and the surroundings are the request's own
// State. In a splice, the surroundings are a Source of cached segments. A difference between a
// prefill and a splice can therefore only come from the cache.
//
// The type parameter is the arithmetic: float32 uses the kernels of gpuipc/kernel and rounds
// keys and values to the profile's element type, as an engine's paged cache does; float64 rounds
// nothing and is the oracle.
//
// The result of a row does not depend on the other rows of a walk: a prefill in chunks, from a
// checkpoint or as a whole gives equal bits.
//
// A Model is immutable and may be used by several goroutines at once. A State, a Segment and a
// Source belong to one goroutine at a time, and own the slices they return.
package refengine
