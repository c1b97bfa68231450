// Package chatdemo serves conversations with the reference engine in four ways -
// computing every prompt whole, keeping a state at the end of every block of
// tokens, of every message, and where the daemon advises - and measures what each
// computed, how long its first token took, and what it kept.
//
// Conversations share system prompts, go on for several turns, run through tool
// calls, are forked from an earlier message, and have answers generated again:
// what of a prompt was seen before ends at an end of a message, or inside one.
//
// The weights are random: times, counts and bytes mean something, what the model
// says does not. Answers are compared bit for bit.
//
// The package prints nothing unless asked and keeps nothing between runs.
package chatdemo
