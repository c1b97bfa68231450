package transfer

// HintsMax is the maximum number of waiting hints; further ones are dropped.
const HintsMax = 1024

// Hints is a ring of objects for which flights may be started. Adding one allocates
// nothing once the ring exists. The zero Hints is empty. Guarded by the engine's lock.
type Hints[T any] struct {
	ring  []T
	first int
	n     int
}

// Len returns the number of waiting hints.
func (h *Hints[T]) Len() int { return h.n }

// Add appends a hint. It returns false if the ring is full.
func (h *Hints[T]) Add(t T) bool {
	if h.ring == nil {
		h.ring = make([]T, HintsMax)
	}
	if h.n == HintsMax {
		return false
	}
	h.ring[(h.first+h.n)%HintsMax] = t
	h.n++
	return true
}

// Take removes and returns the first hint; there must be one.
func (h *Hints[T]) Take() T {
	var none T
	t := h.ring[h.first]
	h.ring[h.first] = none
	h.first = (h.first + 1) % HintsMax
	h.n--
	return t
}
