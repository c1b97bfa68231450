package view

import (
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/decided"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Decisions implements api.Node. It lists this start's decisions first, then those of earlier
// starts.
func (v *listing) Decisions(q api.DecisionQuery) []api.Decision {
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

// slug converts words to a name. Each run of characters other than letters and digits becomes "_".
func slug(words string) string {
	return strings.Join(strings.FieldsFunc(words, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }), "_")
}
