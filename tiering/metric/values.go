package metric

import "sync"

// Other is the value that a bounded label has for all values above its bound.
const Other = "other"

// Values bounds the values of a label. The first values keep their names until the program
// ends, so that no counter ever decreases. Once the places are used up, all later values
// share the value Other.
type Values struct {
	most  int
	mu    sync.Mutex // held briefly
	known map[string]struct{}
}

// NewValues returns Values with room for a number of values besides Other.
func NewValues(most int) *Values { return &Values{most: most, known: map[string]struct{}{}} }

// Of returns the label value to use for a value: the value itself, or Other.
func (v *Values) Of(value string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.known[value]; ok {
		return value
	}
	if len(v.known) >= v.most {
		return Other
	}
	v.known[value] = struct{}{}
	return value
}
