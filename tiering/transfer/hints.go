package transfer

// HintsMax bounds the waiting hints; more are dropped.
const HintsMax = 1024

// Hints is a ring of candidates for flights, so that adding one allocates nothing. The
// zero Hints is empty. Guarded by the engine's lock.
type Hints[T any] struct {
	ring  []T
	first int
	n     int
}

// Len returns the number of waiting hints.
func (h *Hints[T]) Len() int { return h.n }

// Add appends a hint; false if there are too many.
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
