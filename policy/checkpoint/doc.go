// Package checkpoint decides at which tokens of a prompt the recurrent states
// are kept. A request that shares t tokens with a held prompt resumes from the
// deepest checkpoint c <= t and computes t-c tokens again; placement makes that
// small for a given number of checkpoints.
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
//	depth    t                what a fixed preamble gives
//	share    t / L            documents that are read in part
//	tail     L - t            questions behind a document; 0 = the whole prompt, chat
//
// L being the length of the prompt that was hit. Each is solved on its own, off
// the hot path, and read out for any prompt. Which of them, of two of them
// together, or of plain spacing to follow is decided by what each would have
// saved on the hits seen so far, counted before the hit is learned from: no
// setting, and about as good as the best of them.
//
// Where a prompt leaves what was seen before (its branch) and where the
// application cuts it are better than any law, so they come first.
//
// Positions are fixed when a prompt is inserted. The package is pure; a Planner
// has one owner, a Problem may be solved anywhere.
package checkpoint
