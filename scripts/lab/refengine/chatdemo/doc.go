// Package chatdemo serves conversations with the reference engine in four ways. It computes
// every prompt without a cache, or saves states at the end of every block of tokens, at the end
// of every message, or where the daemon advises. For each way it measures the computed tokens,
// the time to the first token, and the saved states.
//
// Conversations share system prompts, have several turns, contain tool calls, are forked from an
// earlier message, and have answers that are generated again. The known part of a prompt may
// therefore end at the end of a message or inside a message.
//
// The weights are random: times, counts and bytes are meaningful, the generated text is not.
// Answers are compared bit for bit.
//
// The package prints only in Report.Print, and keeps nothing between runs.
package chatdemo
