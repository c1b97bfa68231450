// Package schedule plans which worker computes which missing segment of a cold
// request, and predicts the time to its first token.
//
// # Whole segments
//
// LPT is the rule of HYPIC (§4.4): longest first, to the worker that has least;
// at most (4/3 - 1/(3m)) of the optimum. Whole is never worse: it also tries
// MULTIFIT, exchanges between workers and a bounded exact search, and says how
// far above a proven lower bound it ended.
//
// # Pieces
//
// Whole segments cannot divide evenly: 11 equal ones on 8 workers take the time
// of 2, a division would take 1.375. Segments are cut instead of waited for:
// states compose associatively, (T, S)·(T', S') = (T·T', T·S' + S), so the right
// piece of a segment goes on from the end-state of the left one. Of its attention
// layers it reads the left piece's rows and does its own share of the triangle:
// no work is added, but the rows and states have to be there first. Pieces
// therefore run one after the other, never side by side: McNaughton's wrap-around
// rule, by which the left piece begins its worker's plan and the right piece ends
// another's, leaves Makespan - segment time for the hand-over. What a cut costs
// is one more run (Prefill.Fixed) and the hand-over, both in the model.
//
// # Time to first token
//
//	TTFT = makespan + comm + combine
//
// after HYPIC Fig. 14. With its 2,400-token segments, 176.8 ms each, and its
// comm + combine of 112, 116 and 129 ms at 2, 4 and 8 workers, whole segments give
// 1173, 646 and 483 ms. The paper prints 378 ms at 8 workers: its 249 ms of
// dispatch are 1.41 segments, which no assignment of whole ones reaches.
// Pieces do, as long as one more run costs below 6.7 ms: 376.5 ms at 5 ms a run.
//
// # Unlike workers
//
// A Pool's workers are all alike, and bringing segments to the node that combines is one
// number. A Team's have queues and speeds of their own, need not all be able to do pieces,
// and each segment is brought as soon as it is published, one after another, unless it was
// computed on the node that combines. Best then also chooses how many workers are worth
// it: one may be the quickest (§4.4).
//
// The package is pure. A Plan names workers and pieces, so that whoever executes
// it needs nothing else.
package schedule
