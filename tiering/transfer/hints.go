package transfer

// HintsMax bounds how many hints wait; more are dropped.
const HintsMax = 1024

// Hints is a ring of what may be worth a flight, so that noting one allocates
// nothing. The zero Hints is empty. Guarded by the engine's lock.
type Hints[T any] struct {
	ring  []T
	first int
	n     int
}

// Len is how many wait.
func (h *Hints[T]) Len() int { return h.n }

// Add puts a hint behind the others; false when there are too many.
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

// Take is the first one, of at least one.
func (h *Hints[T]) Take() T {
	var none T
	t := h.ring[h.first]
	h.ring[h.first] = none
	h.first = (h.first + 1) % HintsMax
	h.n--
	return t
}
