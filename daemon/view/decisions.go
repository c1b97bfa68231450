package view

import (
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/decision"
)

// Decisions implements api.Node.
func (v *View) Decisions(q api.DecisionQuery) []api.Decision {
	var list []api.Decision
	for d := range v.o.Store.Decisions().Last() {
		if len(list) == q.Limit {
			break
		}
		if entry := v.decision(d); q.Match(&entry) {
			list = append(list, entry)
		}
	}
	return list
}

func (v *View) decision(d *decision.Decision) api.Decision {
	entry := api.Decision{
		At: d.At, What: d.What.String(), Why: d.Why.String(), Object: "segment",
		Profile: uint32(d.Profile), Tenant: v.o.Tenants.NameOf(d.Tenant), Begin: d.Begin, End: d.End, Value: d.Value, Bytes: d.Bytes,
	}
	if d.Name.Kind != 0 {
		entry.Object = "checkpoint"
	}
	if d.Name.Key != ([32]byte{}) {
		key := api.Digest(d.Name.Key)
		entry.Key = &key
	}
	return entry
}

// slug makes words a name: letters and digits, anything else one underscore.
func slug(words string) string {
	return strings.Join(strings.FieldsFunc(words, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }), "_")
}
