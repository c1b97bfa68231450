package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
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

// composed takes the time that all linear layers of a plan's segments took on one
// rank; the others compute theirs beside it.
func (h *heldPlan) composed(took time.Duration) {
	segments := int64(0)
	for i := range h.spans {
		if h.spans[i].object != nil {
			segments++
		}
	}
	c := h.profile.costs
	c.Did(cost.JobCompose, segments*c.Model().Shape.SegmentTotalBytes(0), took)
}

// rotated takes the time that the rows of a plan's segments took.
func (h *heldPlan) rotated(took time.Duration) {
	c := h.profile.costs
	c.Did(cost.JobRotate, c.Model().Shape.RowBytes(h.rows), took)
}
