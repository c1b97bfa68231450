// Package find finds cached segments in a prompt that is not divided into segments. It has an
// index of the rolling hashes of segments (profile.SegmentHash), and searches a prompt for them.
//
// Memory and the lower tier add their segments to the index and remove them, each under its own
// lock. A segment in both is counted twice. The index knows neither keys nor bytes. The result
// of a search is a guess: the caller computes each span's key from the tokens and looks it up. A
// different segment with the same hash is therefore a miss, never a hit.
//
// A search takes time proportional to the prompt, whatever is cached, since it tries a bounded
// number of lengths for each token (see Found.Untried). All methods may be called concurrently.
// The index's lock is taken after any lock of its callers, and held for a few steps at a time.
package find
