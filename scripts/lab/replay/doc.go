// Package replay plays recorded request streams through simulated caches and
// says what each policy would have hit, evicted and saved.
//
// One pass over a trace feeds all simulations, so that each request is decoded
// once. Traces of prompts go to a prefix cache (prefixcache), lists of segments
// to a pool that holds segments by what they are, files of overlap depths to the
// placements of policy/checkpoint. What no cache can exceed is in bound. Times
// are modelled, never measured, apart from the simulation's own speed.
package replay
