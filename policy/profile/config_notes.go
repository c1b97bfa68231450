package profile

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ConfigNotes describes how a config was read.
type ConfigNotes struct {
	Defaults map[string]any `json:"defaults,omitempty"` // values of fields that are missing or null
	Warnings []string       `json:"warnings,omitempty"` // such as fields that look like misspelt names of missing ones
}

// assumed lists the defaults.
func (n ConfigNotes) assumed() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(n.Defaults)) {
		v, _ := json.Marshal(n.Defaults[name]) // a number, flag or text
		all = append(all, fmt.Sprintf("%s %s", name, v))
	}
	return strings.Join(all, ", ")
}

// lookups records which fields were looked for. Names of nested fields have the form
// "section.field". A nil *lookups records nothing.
type lookups struct {
	given    map[string]bool // fields of the config, and whether they were looked for
	missing  map[string]bool
	defaults map[string]any
}

func newLookups() *lookups {
	return &lookups{given: map[string]bool{}, missing: map[string]bool{}, defaults: map[string]any{}}
}

// open adds the fields of an object.
func (l *lookups) open(prefix string, values map[string]json.RawMessage) {
	if l == nil {
		return
	}
	for name := range values {
		if _, opened := l.given[prefix+name]; !opened {
			l.given[prefix+name] = false
		}
	}
}

func (l *lookups) lookup(name string, found bool) {
	if l == nil {
		return
	}
	if !found {
		l.missing[name] = true
	} else if _, given := l.given[name]; given { // otherwise it was computed
		l.given[name] = true
	}
}

func (l *lookups) assume(name string, v any) {
	if l != nil {
		l.defaults[name] = v
	}
}

// notes compares each field that nothing looked for with those that are missing.
func (l *lookups) notes() ConfigNotes {
	n := ConfigNotes{Defaults: l.defaults}
	missing := slices.Sorted(maps.Keys(l.missing))
	for _, name := range slices.Sorted(maps.Keys(l.given)) {
		if l.given[name] || l.missing[name] {
			continue
		}
		near := slices.IndexFunc(missing, func(other string) bool { return mayBe(name, other) })
		if near >= 0 {
			n.Warnings = append(n.Warnings, fmt.Sprintf("%s is ignored, and %s is missing: a misspelt name?", name, missing[near]))
		}
	}
	return n
}

// mayBe returns whether a name is at most two edits away from the one that is wanted. It
// accepts fewer edits of short names, and no added word, which makes another field of it
// ("v_head_dim").
func mayBe(name, wanted string) bool {
	edits := min(len(wanted)/4, 2)
	return len(name) <= len(wanted)+edits && EditDistance(name, wanted) <= edits &&
		!strings.HasSuffix(name, "_"+wanted) && !strings.HasPrefix(name, wanted+"_")
}

// EditDistance returns the number of bytes to insert, delete or replace between two names.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] from each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
