package policy

// Table assigns ids to objects for policies and finds the objects without a map. The low
// half of an id is a place in the table. The high half is a count of assignments, so that
// ids are never reused. The zero Table is empty. It has no lock.
type Table[T any] struct {
	places []*T
	free   []uint32
	given  uint32
}

// Add assigns an id to v.
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

// Get returns the object of an id, which must not have been removed.
func (t *Table[T]) Get(id ID) *T { return t.places[uint32(id)] }

// Remove frees the place of an id.
func (t *Table[T]) Remove(id ID) {
	t.places[uint32(id)] = nil
	t.free = append(t.free, uint32(id))
}

// Places returns the table itself, with nil at free places. The caller must not write to
// it. It is valid until the next Add or Remove.
func (t *Table[T]) Places() []*T { return t.places }
