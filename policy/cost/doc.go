// Package cost estimates the value of a hit and the time of each way to serve a prompt. It
// uses the bytes of a model's state, measured prefills, and the time to load bytes from a
// tier. From these it derives what to admit, what an object saves per byte, and how to
// serve a request.
//
// # Milliseconds
//
// Prefill predicts the tokens [b, e) of a prompt:
//
//	ms = Fixed + PerToken (e - b) + PerTokenSquared (e² - b²)
//
// and Fit finds the three coefficients from measured samples. An engine that splices serves
// the leading part of a prompt from cached segments. It walks its layers over the tokens
// between the segments, and computes the continuation with its own prefill:
//
//	ms = loads + claim + walk of the computed and the placed rows
//	   + captures of missing segments + prefill of the continuation
//
// The claim is a fixed cost of each splice. Walks and captures are learned like prefills.
// Until they are measured, Model.Guess derives them from the time that a prefill takes per
// row. A Link predicts a transfer of n bytes: Fixed + PerByte n. A hit on [b, e) in a tier
// saves
//
//	saved = min(recompute [b, e), load it from the tier below) - load it from this tier
//
// The recomputation in this formula excludes Prefill.Fixed, because the prefill of the rest
// of the prompt costs that in any case. Placement and eviction order objects by density,
// which is the saved milliseconds per byte.
//
// The package has no clock, lock or I/O. A Model has one owner, which calls it under a
// lock. All other types are plain values.
package cost
