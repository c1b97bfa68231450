// Package schedule plans which worker computes which missing segment of a cold
// request, and predicts the time to its first token.
//
// # Whole segments
//
// LPT is the rule of HYPIC (§4.4): longest first, to the worker with the smallest
// load; at most (4/3 - 1/(3m)) times the optimum. Whole is never worse: it also
// tries MULTIFIT, exchanges between workers and a bounded exact search, and reports
// the distance to a proven lower bound.
//
// # Pieces
//
// Whole segments cannot divide evenly: 11 equal ones on 8 workers take the time
// of 2, a division would take 1.375. So segments are cut: states compose
// associatively, (T, S)·(T', S') = (T·T', T·S' + S), and the right piece of a
// segment continues from the end-state of the left one. In attention layers it
// reads the left piece's rows and computes its own part of the triangle. No work is
// added, but the rows and states have to arrive first, so pieces of a segment run
// one after the other, never at the same time. McNaughton's wrap-around rule, by
// which the left piece starts its worker's plan and the right piece ends another's,
// leaves Makespan - segment time for the hand-over. A cut costs one more run
// (Prefill.Fixed) and the hand-over, both in the model.
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
// # Different workers
//
// A Pool's workers are equal, and transfers to the combining node are one number. A
// Team's workers differ in queue and speed, and some may not support pieces. Each
// segment is fetched as soon as it is published, one after another, unless it was
// computed on the combining node. Best then also chooses the number of workers: one
// may be the fastest (§4.4).
//
// A Plan lists workers and pieces, which is all that its execution needs.
package schedule
