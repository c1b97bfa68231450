// Package cost says what a hit is worth and what a way of serving a prompt
// takes: floating-point work and bytes of a model, milliseconds of a prefill as
// measured, milliseconds to bring bytes from a tier, and from these what to
// admit, how much an object's memory earns, and which way to serve a request.
//
// # Work and bytes
//
// Shape counts both for a prefill of L tokens. With D the hidden size and N the
// size of a state, one layer costs (Marconi, Table 1, and its released code)
//
//	attention  8 L D² + 4 L² D        keeps 4 L D bytes (keys and values, 16 bit)
//	MLP        16 L D²                keeps nothing
//	SSM        12 L D² + 16 L D N + 10 L      keeps 2 D N bytes
//	           the released code has 10 L D as its last term
//
// The square of attention is counted whole, as there: a causal kernel does half.
//
// # Milliseconds
//
// Prefill predicts the tokens [b, e) of a prompt:
//
//	ms = Fixed + PerToken (e - b) + PerTokenSquared (e² - b²)
//
// and Fit finds the three from measured samples. An engine that splices takes over the
// leading part of a prompt:
//
//	ms = loads + claim + walk of the rows between segments and of those placed
//	   + captures of missing segments + prefill of what stands behind
//
// Walks and captures are learned as prefills are; until then they are guessed in rows of
// a prefill, see Guess. A Link predicts a transfer of n
// bytes: Fixed + PerByte n. A hit on [b, e) that lies in a tier saves
//
//	saved = min(recompute [b, e), bring it from the tier below) - bring it from here
//
// without Fixed of the prefill, which the rest of the prompt pays anyway. Saved
// milliseconds per byte is the density that placement and eviction order by.
//
// The package is pure: no clock, no lock, no I/O. A Model has one owner, who
// calls it under a lock; everything else is a value.
package cost
