package metric

import "sync"

// Other is the value of a bounded label that stands for all that are beyond the bound.
const Other = "other"

// Values bounds the values of a label: the first ones that come keep their names until the
// program ends, so that no counter ever goes back, and those that come when there is no
// place any more share the row Other.
type Values struct {
	most  int
	mu    sync.Mutex // held for a moment
	known map[string]struct{}
}

// NewValues makes room for so many values beside Other.
func NewValues(most int) *Values { return &Values{most: most, known: map[string]struct{}{}} }

// Of is the label of a value: itself, or Other.
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
