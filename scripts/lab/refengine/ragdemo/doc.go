// Package ragdemo runs real RAG requests through the reference engine in three ways - full
// recompute, prefix caching only, and spliced. It measures the computed tokens, the time to
// the first token, and the distance of the states from full recompute. It also measures
// naive addition of states.
//
// The weights are random: TTFT, token counts, bytes and state errors are meaningful, the
// generated text is not.
//
// The package prints nothing unless asked and keeps nothing between runs; the store keeps
// its contents.
package ragdemo
