package tiering

import (
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ProfileCosts is what a profile's costs are predicted from now.
type ProfileCosts struct {
	Profile tier.ProfileID
	Model   string
	costs.Snapshot
}

// Costs lists the costs of all profiles.
func (s *Store) Costs() []ProfileCosts {
	var list []ProfileCosts
	for _, p := range *s.profiles.Load() {
		list = append(list, ProfileCosts{p.id, p.model, p.costs.Snapshot()})
	}
	return list
}
