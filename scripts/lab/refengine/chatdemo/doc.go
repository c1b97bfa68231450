// Package chatdemo serves conversations with the reference engine in four ways: computing
// every prompt whole, saving a state at the end of every block of tokens, at the end of
// every message, and where the daemon advises. For each it measures the computed tokens,
// the time to the first token, and the saved states.
//
// Conversations share system prompts, have several turns, run through tool calls, are
// forked from an earlier message, and have answers generated again: the known part of a
// prompt ends at the end of a message, or inside one.
//
// The weights are random: times, counts and bytes are meaningful, the generated text is
// not. Answers are compared bit for bit.
//
// The package prints nothing unless asked and keeps nothing between runs.
package chatdemo
