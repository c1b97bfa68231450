// Package replay plays recorded request streams through simulated caches and reports the hits,
// evictions and savings of each policy.
//
// One pass over a trace feeds all simulations, so that each request is decoded once. Traces of
// prompts are played through a prefix cache (package prefixcache), lists of segments through a
// pool of segments by id, and files of overlap depths through the placements of
// policy/checkpoint. Package bound computes an upper bound for every cache. Times come from a
// model and are not measured, except for the simulation's own speed.
package replay
