// Package replay plays recorded request streams through simulated caches and reports what
// each policy would have hit, evicted and saved.
//
// One pass over a trace feeds all simulations, so that each request is decoded once. Traces
// of prompts go to a prefix cache (prefixcache), lists of segments to a pool of segments by
// id, files of overlap depths to the placements of policy/checkpoint. Package bound
// computes a limit for every cache. Times are modelled, never measured, except for the
// simulation's own speed.
package replay
