// Package checkpoint decides at which tokens of a prompt the recurrent states
// are stored. A request that shares t tokens with a cached prompt resumes from the
// deepest checkpoint c <= t and recomputes t-c tokens; placement minimizes that for
// a given number of checkpoints.
//
// # Known law
//
// Law.Optimal is the exact dynamic program of the Sparse Prefix Caching paper
// (Theorem 2) in O(N·M). Balanced, Block, Sqrt and Logarithmic are its
// baselines: balanced spacing is optimal for uniform depths and in the worst
// case (Theorem 1).
//
// # Unknown law
//
// A Planner learns it. One histogram of absolute depths, as in the paper, loses
// to plain spacing when prompts differ in length, so three are kept, each with
// exponential weights (γ = 0.99, Theorem 4):
//
//	depth    t                fixed preambles
//	share    t / L            documents that are read in part
//	tail     L - t            questions after a document; 0 = the whole prompt, chat
//
// where L is the length of the prompt that was hit. Each is solved on its own, off
// the hot path, and gives positions for any prompt. The planner follows the rule
// (one of them, a combination, or plain spacing) that would have saved most on the
// hits so far, each counted before it is learned from. That needs no setting and is
// about as good as the best rule.
//
// The token at which a prompt leaves earlier ones (its branch) and the cuts of the
// application are better positions than any law gives, so they come first.
//
// Positions are fixed when a prompt is inserted. A Planner has one owner; a Problem
// may be solved on any goroutine.
package checkpoint
