package tiering

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// registry is the part of a store that knows the profiles of its clients.
type registry struct {
	cat     *catalog.Catalog
	evictor *move.Evictor

	parts       *plan.Parts
	profileMu   sync.Mutex // held while a profile is added; locked before the store's lock
	profileTop  tier.ProfileID
	reclaimMu   sync.Mutex // held while room is made for a profile; locked before the store's lock
	profileLeft uint64     // counts profiles that went out of use, see ReleaseProfile; guarded by the store's lock
}

// AddProfile registers a profile and counts one use of it. While an identity is
// registered, each call with it returns the same id. If too many profiles are registered,
// AddProfile removes one that has no uses and no objects. If there is none, it returns
// ErrBusy; ReclaimProfile may then free a slot. Ids are never reused.
func (reg *registry) AddProfile(p *profile.Profile) (tier.ProfileID, error) {
	reg.profileMu.Lock() // serializes calls, so that the slow work needs no store lock
	defer reg.profileMu.Unlock()
	if id, ok := reg.reuseProfile(p); ok {
		return id, nil
	}
	id := reg.profileTop + 1
	ps := objects.NewProfile(plan.NewGeometry(p, id, int64(reg.cat.Config.PageBytes), reg.parts), id, reg.cat.Config.Cost)
	reg.cat.Mu.Lock()
	defer reg.cat.Mu.Unlock()
	known := *reg.cat.Profiles.Load()
	next := slices.Clone(known)
	if len(next) >= reg.cat.Config.MaxProfiles {
		i := slices.IndexFunc(next, reg.forgettableLocked)
		if i < 0 {
			return 0, fmt.Errorf("profile %q: %d are registered and in use: %w", p.Identity().Model, len(next), tier.ErrBusy)
		}
		next[i].Forgotten = true
		next = slices.Delete(next, i, i+1)
	}
	reg.profileTop = id
	ps.Uses = 1
	next = append(next, ps)
	reg.cat.Profiles.Store(&next)
	return ps.ID, nil
}

// reuseProfile counts a use of a profile that is already registered, and reports whether it is.
func (reg *registry) reuseProfile(p *profile.Profile) (tier.ProfileID, bool) {
	reg.cat.Mu.Lock()
	defer reg.cat.Mu.Unlock()
	ps := reg.cat.Registered(p.Fingerprint())
	if ps == nil {
		return 0, false
	}
	ps.Uses++
	return ps.ID, true
}

// RegisteredProfile returns the profile of a fingerprint, nil if it is not registered.
func (reg *registry) RegisteredProfile(fp profile.Fingerprint) *profile.Profile {
	if ps := reg.cat.Registered(fp); ps != nil {
		return ps.Profile
	}
	return nil
}

// ReleaseProfile ends one use that AddProfile counted. The profile and its objects stay
// until another profile needs the slot.
func (reg *registry) ReleaseProfile(id tier.ProfileID) {
	reg.cat.Mu.Lock()
	defer reg.cat.Mu.Unlock()
	ps, err := reg.cat.Profile(id)
	if err != nil || ps.Uses <= 0 {
		panic(fmt.Sprintf("tiering: release of profile %d, which is not in use", id))
	}
	if ps.Uses--; ps.Uses == 0 {
		reg.profileLeft++
		ps.Left = reg.profileLeft
	}
}

// mostReclaimed bounds the profiles that one ReclaimProfile tries, since each try walks
// the whole catalog.
const mostReclaimed = 3

// ReclaimProfile evicts the objects of the least recently used profile without uses, so
// that AddProfile can give its slot to another. If some of its objects are leased, filled
// or being written, the profile stays and the next one is tried. It stops when ctx ends.
func (reg *registry) ReclaimProfile(ctx context.Context) {
	reg.reclaimMu.Lock() // one at a time, each for a waiting request
	defer reg.reclaimMu.Unlock()
	reg.cat.Mu.Lock()
	var unused []*objects.Profile
	for _, ps := range *reg.cat.Profiles.Load() {
		if ps.Uses == 0 {
			unused = append(unused, ps)
		}
	}
	slices.SortFunc(unused, func(a, b *objects.Profile) int { return cmp.Compare(a.Left, b.Left) })
	reg.cat.Mu.Unlock()
	for _, ps := range unused[:min(len(unused), mostReclaimed)] {
		if reg.reclaim(ctx, ps) {
			break
		}
	}
	reg.cat.Launch()
}

// reclaim evicts the evictable objects of a profile and reports whether it has none left.
func (reg *registry) reclaim(ctx context.Context, ps *objects.Profile) (free bool) {
	for shard := 0; shard < index.Shards && ctx.Err() == nil; shard++ {
		for _, m := range [...]*index.Map[objects.Object]{reg.cat.Objects.Names.Segments, reg.cat.Objects.Names.Checkpoints} {
			reg.cat.Mu.Lock()
			found := m.Sorted(shard, nil)
			reg.cat.Mu.Unlock()
			reg.cat.Mu.Each(len(found), catalog.HoldRows, func(i int) {
				for o := m.Find(&found[i].Key); o != nil && ps.Uses == 0; {
					next := o.Sibling
					reg.evictUpLocked(o, ps)
					o = next
				}
			})
		}
	}
	reg.cat.Mu.Lock()
	defer reg.cat.Mu.Unlock()
	return reg.forgettableLocked(ps)
}

// evictUpLocked evicts an object of a profile, if it is evictable. It then does the same
// with its parent, and so on, while no other object extends the parent.
func (reg *registry) evictUpLocked(o *objects.Object, ps *objects.Profile) {
	for n := 0; n < catalog.HoldRows && o != nil && o.Profile == ps && o.Ranked == objects.Candidate && o.Children == 0; n++ {
		up := o.Parent
		reg.evictor.EvictLocked(only{o.Pool.Evict, o.ID}, move.ForRoom, nil)
		o = up
	}
}

// only is an eviction policy that always chooses one given object.
type only struct {
	policy.Eviction
	id policy.ID
}

func (o only) Victim(func(policy.ID) bool) (policy.ID, bool) { return o.id, true }

// forgettableLocked reports whether a profile has no uses and no objects. Unused copies in
// HBM of objects on disk do not count, since the next sweep drops them.
func (reg *registry) forgettableLocked(ps *objects.Profile) bool {
	if ps.Uses > 0 || ps.Segments > 0 || ps.Checkpoints > 0 {
		return false
	}
	return ps.Held == 0
}

// Profile returns a registered profile.
func (reg *registry) Profile(id tier.ProfileID) (*profile.Profile, bool) {
	ps, err := reg.cat.Profile(id)
	if err != nil {
		return nil, false
	}
	return ps.Profile, true
}

// FindProfile returns the registered profile of a fingerprint. It takes no lock.
func (reg *registry) FindProfile(f profile.Fingerprint) (tier.ProfileID, *profile.Profile, bool) {
	ps := reg.cat.Registered(f)
	if ps == nil {
		return 0, nil, false
	}
	return ps.ID, ps.Profile, true
}

// Prefill returns the predicted cost of computing tokens, and whether it was measured. The
// cost is zero for a profile that is not registered. It takes no lock.
func (reg *registry) Prefill(id tier.ProfileID) (predicted cost.Prefill, measured bool) {
	ps, err := reg.cat.Profile(id)
	if err != nil {
		return cost.Prefill{}, false
	}
	return ps.Costs.Prefill()
}

// ProfileCosts is a snapshot of the costs that predictions for a profile use.
type ProfileCosts struct {
	Profile     tier.ProfileID
	Fingerprint profile.Fingerprint
	Model       string
	costs.Snapshot
}

// Costs lists the costs of all profiles.
func (reg *registry) Costs() []ProfileCosts {
	var list []ProfileCosts
	for _, p := range *reg.cat.Profiles.Load() {
		list = append(list, ProfileCosts{p.ID, p.Fingerprint(), p.Model, p.Costs.Snapshot()})
	}
	return list
}

// Learned returns the costs of a profile; ErrInvalid if it is not registered.
func (reg *registry) Learned(id tier.ProfileID) (*costs.Learned, error) {
	p, err := reg.cat.Profile(id)
	if err != nil {
		return nil, err
	}
	return p.Costs, nil
}

// ProfileOf returns a registered profile; nil if there is none with this id.
func (reg *registry) ProfileOf(id tier.ProfileID) *profile.Profile {
	p, err := reg.cat.Profile(id)
	if err != nil {
		return nil
	}
	return p.Profile
}

// CostModel returns the current cost predictions for a profile's engines and links. The
// result is never modified.
func (reg *registry) CostModel(id tier.ProfileID) (*cost.Model, error) {
	p, err := reg.cat.Profile(id)
	if err != nil {
		return nil, err
	}
	return p.Costs.Model(), nil
}

// Geometry returns the locations of the parts of a registered profile's objects, and the
// lengths of the results of plans.
func (reg *registry) Geometry(id tier.ProfileID) (*plan.Geometry, error) {
	p, err := reg.cat.Profile(id)
	if err != nil {
		return nil, err
	}
	return p.Geometry, nil
}
