package policy

// Table gives things the ids that policies know them by, and finds them again
// without a map: the low half of an id is a place in the table, the high half
// counts how often places were given, so that ids are never reused. The zero
// Table is empty. It has no lock.
type Table[T any] struct {
	places []*T
	free   []uint32
	given  uint32
}

// Add gives v an id.
func (t *Table[T]) Add(v *T) ID {
	var at uint32
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		at = uint32(len(t.places))
		t.places = append(t.places, nil)
	}
	t.places[at] = v
	t.given++
	return ID(t.given)<<32 | ID(at)
}

// Get answers what has an id, which must not have been removed.
func (t *Table[T]) Get(id ID) *T { return t.places[uint32(id)] }

// Remove frees the place of an id.
func (t *Table[T]) Remove(id ID) {
	t.places[uint32(id)] = nil
	t.free = append(t.free, uint32(id))
}

// Places is the table itself, nil where a place is free. It must not be written,
// and holds until the next Add or Remove.
func (t *Table[T]) Places() []*T { return t.places }
