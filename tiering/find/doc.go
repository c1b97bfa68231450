// Package find finds cached segments in a prompt that is not divided into segments: an
// index of the rolling hashes of segments (profile.SegmentHash), and a search through a
// prompt.
//
// The tiers with segments, the store in memory and the tier below it, add and remove them
// under their own locks; a segment in both counts twice. The index knows neither keys nor
// bytes. The result of a search is a guess: its caller computes each span's key from the
// tokens and looks it up, so a different segment with the same hash is a miss, never a
// hit.
//
// A search takes time proportional to the prompt, whatever is cached: a bounded number of
// lengths is tried for each token (see Found.Untried). All methods may be called
// concurrently. The index's lock is taken after any lock of its callers, for a few steps
// each time.
package find
