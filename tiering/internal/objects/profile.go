package objects

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Profile is a registered profile and values derived from it.
type Profile struct {
	*plan.Geometry
	ID    tier.ProfileID
	Ranks int
	Model string

	Costs *costs.Learned
	// Trial marks a profile whose objects only test whether the daemon works. They have
	// separate counters, and are never written to the lower tier, sent or reported.
	Trial bool

	// Guarded by the store's lock.
	Uses        int       // AddProfile calls without a ReleaseProfile yet
	Left        uint64    // sequence number of the end of the last use
	Engines     []Engines // readers of HBM, one entry per rank and device, by rank
	Forgotten   bool      // removed from the registry: no new fills
	Held        int       // number of objects with memory, without unused copies in HBM
	Segments    int       // number of published segments
	Checkpoints int
}

// NewProfile returns a profile without uses.
func NewProfile(p *plan.Geometry, id tier.ProfileID, priors costs.Priors) *Profile {
	ps := &Profile{Geometry: p, ID: id, Ranks: p.TPSize(), Model: p.Identity().Model, Trial: p.Fingerprint().IsTrial()}
	ps.Costs = costs.New(p.Profile, priors)
	return ps
}

// Fits reports whether an entry's shape, which comes from a disk or a peer, is possible
// for the profile.
func (p *Profile) Fits(e *tier.Entry) bool {
	if e.Kind != 0 {
		return e.Begin >= 0 && e.Begin < e.End && e.End <= profile.MaxTokens && (e.Begin > 0) == (e.Parent != tier.Name{}) && (e.Parent == tier.Name{} || e.Parent.Kind != 0)
	}
	if p.CheckSpec(e.Spec) != nil || e.Parent != (tier.Name{}) {
		return false
	}
	begin, count := e.Spec.Interior()
	if e.Begin != begin || e.End != begin+count || e.Packed != "" && !e.Spec.MayPack() {
		return false
	}
	_, err := p.PackedParts(count, e.Packed)
	return err == nil
}

// PartsOf returns the locations of the parts of an entry whose shape Fits has checked.
func (p *Profile) PartsOf(e *tier.Entry) *plan.PartMap {
	if e.Kind != 0 {
		return p.NodeParts(e.Kind, e.End-e.Begin)
	}
	parts, err := p.PackedParts(e.End-e.Begin, e.Packed)
	if err != nil {
		panic(fmt.Sprintf("objects: %v was not checked: %v", e.Name, err))
	}
	return parts
}
