// Package ragdemo runs real RAG requests through the reference engine in three
// ways - full recompute, prefix caching only, and spliced - and measures what
// each computed, how long its first token took, and how far its states are from
// full recompute. Naive addition of states is measured beside them.
//
// The weights are random: TTFT, token counts, bytes and state errors mean
// something, what the model says does not.
//
// The package prints nothing unless asked and keeps nothing between runs; the
// store it is given keeps what it holds.
package ragdemo
