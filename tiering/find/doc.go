// Package find tells where held segments stand in a prompt that nobody has cut: an index
// of the rolling hashes of segments (profile.SegmentHash), and a search through a prompt.
//
// Whoever holds segments, the store in memory and the tier below it, adds and removes them
// under locks of its own; a segment that both hold counts twice. The index knows neither
// keys nor bytes. What a search answers is a guess: its caller computes each span's key
// from the tokens and looks that up, so that what hashes alike but is another segment is a
// miss, never a hit.
//
// A search takes time in proportion to the prompt, whatever is held: a bounded number of
// lengths is tried for each token (see Found.Untried). All methods may be called at once.
// The index's lock is taken after that of any of its callers, for a few steps each time.
package find
