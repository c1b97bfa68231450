// Package ragdemo runs real RAG requests through the reference engine in three ways: full
// recompute, prefix caching only, and splicing. It measures the computed tokens, the time to the
// first token, and the distance of the states from those of full recompute. It measures that
// distance also for naive addition of states.
//
// The weights are random: TTFT, token counts, bytes and state errors are meaningful, the
// generated text is not.
//
// The package prints only in Report.Print, and keeps nothing between runs. The store keeps its
// contents.
package ragdemo
