package view

import (
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/decided"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Decisions implements api.Node. Decisions from before this start come after those of this one.
func (v *View) Decisions(q api.DecisionQuery) []api.Decision {
	var list []api.Decision
	for d := range v.o.Store.Decisions().Last() {
		if len(list) == q.Limit {
			return list
		}
		if entry := decided.Of(d, v.o.Tenants); q.Match(&entry) {
			list = append(list, entry)
		}
	}
	if v.o.Decided == nil {
		return list
	}
	ids := v.profileIDs()
	for _, d := range v.o.Decided.Before() {
		if len(list) == q.Limit {
			break
		}
		entry := d.Decision
		entry.Profile = ids[profile.Fingerprint(d.Profile)]
		if q.Match(&entry) {
			list = append(list, entry)
		}
	}
	return list
}

// slug converts words to a name: other characters than letters and digits become one underscore.
func slug(words string) string {
	return strings.Join(strings.FieldsFunc(words, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }), "_")
}
