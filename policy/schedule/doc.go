// Package schedule plans which worker computes which missing segment of a cold
// request, and predicts the time to its first token.
//
// # Whole segments
//
// LPT is the rule of HYPIC (§4.4): the longest segment is next, and goes to the worker with
// the smallest load. Its makespan on m workers is at most (4/3 - 1/(3m)) times the optimum.
// The function Whole is never worse than LPT: it also tries MULTIFIT, exchanges between
// workers and a bounded exact search, and reports whether the result is proven to be
// optimal.
//
// # Pieces
//
// Whole segments cannot be divided evenly: 11 equal segments on 8 workers take the time of
// 2 segments, while an even division would take 1.375 times the time of one. So segments
// are cut. States compose associatively, (T, S)·(T', S') = (T·T', T·S' + S), and the right
// piece of a segment continues from the end-state of the left piece. In attention layers
// the right piece reads the left piece's rows and attends from its own tokens only. The two
// pieces together do no more work than the whole segment. But the rows and states have to
// arrive first, so the pieces of a segment run one after the other, never at the same time.
// In McNaughton's wrap-around rule the left piece starts one worker's plan and the right
// piece ends another's. So the time for the hand-over is the makespan minus the time of the
// segment. A cut costs one more run (Prefill.Fixed) and the hand-over; the model counts
// both.
//
// # Time to first token
//
//	TTFT = makespan + comm + combine
//
// as in HYPIC Fig. 14. The paper's segments have 2,400 tokens and take 176.8 ms each. Its
// comm + combine takes 112, 116 and 129 ms at 2, 4 and 8 workers. With these numbers, whole
// segments give 1173, 646 and 483 ms. The paper prints 378 ms at 8 workers. Without comm
// and combine, 249 ms are left, the time of 1.41 segments, which no assignment of whole
// segments reaches. Pieces reach 378 ms if one more run costs less than 6.7 ms: a plan
// takes 376.5 ms at 5 ms a run.
//
// # Different workers
//
// A Pool's workers are equal, and all transfers to the combining node are one number. A
// Team's workers differ in queue and speed, and some may not support pieces. The combining
// node fetches each segment as soon as it is published, one after another, except the
// segments that it computed itself. Team.Best also chooses the number of workers, because
// one worker may be the fastest (§4.4).
//
// A Plan lists workers and pieces, which is all that its execution needs.
package schedule
