// Package checkpoint decides at which tokens of a prompt the recurrent states are stored. A
// request that shares t tokens with a cached prompt resumes from the deepest checkpoint c
// <= t and recomputes t-c tokens. Placement minimizes this recomputation for a given number
// of checkpoints.
//
// # Known law
//
// A Law is the distribution of the shared tokens t. Law.Optimal is the exact dynamic
// program of the Sparse Prefix Caching paper (Theorem 2) in O(N·M) for N depths and M
// checkpoints. Balanced, Every, Sqrt and Logarithmic are the paper's baselines. Balanced
// spacing is optimal for uniform depths and in the worst case (Theorem 1).
//
// # Unknown law
//
// A Planner learns the law. The paper keeps one histogram of absolute depths, which loses
// to plain spacing when prompts differ in length. So the planner keeps three, each with
// exponential weights (γ = 0.99, Theorem 4):
//
//	depth    t                fixed preambles
//	share    t / L            documents that are read in part
//	tail     L - t            questions after a document; 0 = the whole prompt, as in a chat
//
// where L is the length of the cached prompt. The dynamic program runs on each histogram
// separately, off the hot path, and gives positions for any prompt. A rule is one of these
// solutions, a combination of two, or plain spacing. The planner follows the rule that
// would have saved most on the hits so far. It scores the rules on each hit before it
// learns from this hit. This choice needs no setting and is about as good as the best rule.
//
// Two kinds of positions are better than any that a law gives, so they come first: the
// token at which a prompt leaves earlier prompts (its branch), and the cuts of the
// application.
//
// Positions are fixed when a prompt is inserted. A Planner has one owner; a Problem may be
// solved on any goroutine.
package checkpoint
