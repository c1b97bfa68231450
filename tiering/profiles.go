package tiering

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// AddProfile registers a profile and counts one use of it; the same identity gets the
// same id while it is registered. If too many are registered, one without uses and
// objects is removed for it; ErrBusy if there is none, which ReclaimProfile may change.
// Ids are never reused.
func (s *Store) AddProfile(p *profile.Profile) (tier.ProfileID, error) {
	s.profileMu.Lock() // one at a time, so that slow work is done without the store's lock
	defer s.profileMu.Unlock()
	if id, ok := s.reuseProfile(p); ok {
		return id, nil
	}
	id := s.profileTop + 1
	ps := objects.NewProfile(plan.NewGeometry(p, id, int64(s.cfg.PageBytes), s.parts), id, s.cfg.Cost)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.profiles.Load()
	next := slices.Clone(known)
	if len(next) >= s.cfg.MaxProfiles {
		i := slices.IndexFunc(next, s.forgettableLocked)
		if i < 0 {
			return 0, fmt.Errorf("profile %q: %d are registered and in use: %w", p.Identity().Model, len(next), tier.ErrBusy)
		}
		next[i].Forgotten = true
		next = slices.Delete(next, i, i+1)
	}
	s.profileTop = id
	ps.Uses = 1
	next = append(next, ps)
	s.profiles.Store(&next)
	return ps.ID, nil
}

// reuseProfile counts a use of a profile that is registered.
func (s *Store) reuseProfile(p *profile.Profile) (tier.ProfileID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ps := s.registered(p.Fingerprint())
	if ps == nil {
		return 0, false
	}
	ps.Uses++
	return ps.ID, true
}

// RegisteredProfile returns the profile of a fingerprint, nil if it is not registered.
func (s *Store) RegisteredProfile(fp profile.Fingerprint) *profile.Profile {
	if ps := s.registered(fp); ps != nil {
		return ps.Profile
	}
	return nil
}

// ReleaseProfile ends one use that AddProfile began. The profile stays registered, and
// its objects stay, until its slot is needed.
func (s *Store) ReleaseProfile(id tier.ProfileID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ps, err := s.profile(id)
	if err != nil || ps.Uses <= 0 {
		panic(fmt.Sprintf("tiering: release of profile %d, which is not in use", id))
	}
	if ps.Uses--; ps.Uses == 0 {
		s.profileLeft++
		ps.Left = s.profileLeft
	}
}

// mostReclaimed bounds the profiles that ReclaimProfile tries: each walks the catalogue.
const mostReclaimed = 3

// ReclaimProfile evicts the objects of the least recently used profile without uses, to
// free its slot for another. If some of its objects are leased, filled or being written,
// it stays and the next one is tried. It stops when ctx ends.
func (s *Store) ReclaimProfile(ctx context.Context) {
	s.reclaimMu.Lock() // one at a time, each for a waiting request
	defer s.reclaimMu.Unlock()
	s.mu.Lock()
	var unused []*objects.Profile
	for _, ps := range *s.profiles.Load() {
		if ps.Uses == 0 {
			unused = append(unused, ps)
		}
	}
	slices.SortFunc(unused, func(a, b *objects.Profile) int { return cmp.Compare(a.Left, b.Left) })
	s.mu.Unlock()
	for _, ps := range unused[:min(len(unused), mostReclaimed)] {
		if s.reclaim(ctx, ps) {
			break
		}
	}
	s.launch()
}

// reclaim reports whether a profile has no objects left.
func (s *Store) reclaim(ctx context.Context, ps *objects.Profile) (free bool) {
	for shard := 0; shard < index.Shards && ctx.Err() == nil; shard++ {
		for _, m := range [...]*index.Map[objects.Object]{s.objects.Segments, s.objects.Checkpoints} {
			s.mu.Lock()
			found := m.Sorted(shard, nil)
			s.mu.Unlock()
			s.mu.Each(len(found), holdRows, func(i int) {
				for o := m.Find(&found[i].Key); o != nil && ps.Uses == 0; {
					next := o.Sibling
					s.evictUpLocked(o, ps)
					o = next
				}
			})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgettableLocked(ps)
}

// evictUpLocked evicts an object of a profile, if it is evictable, and the ancestors that
// only it extends.
func (s *Store) evictUpLocked(o *objects.Object, ps *objects.Profile) {
	for n := 0; n < holdRows && o != nil && o.Profile == ps && o.Ranked == objects.Candidate && o.Children == 0; n++ {
		up := o.Parent
		s.evictLocked(only{o.Pool.Evict, o.ID}, forRoom, nil)
		o = up
	}
}

// only is a policy with a given victim.
type only struct {
	policy.Eviction
	id policy.ID
}

func (o only) Victim(func(policy.ID) bool) (policy.ID, bool) { return o.id, true }

// forgettableLocked reports whether a profile has no objects. Idle copies in HBM of what
// is on disk do not count, since the next sweep drops them.
func (s *Store) forgettableLocked(ps *objects.Profile) bool {
	if ps.Uses > 0 || ps.Segments > 0 || ps.Checkpoints > 0 {
		return false
	}
	return ps.Held == 0
}

// Profile returns a registered profile.
func (s *Store) Profile(id tier.ProfileID) (*profile.Profile, bool) {
	ps, err := s.profile(id)
	if err != nil {
		return nil, false
	}
	return ps.Profile, true
}

// FindProfile returns the registered profile of a fingerprint. It takes no lock.
func (s *Store) FindProfile(f profile.Fingerprint) (tier.ProfileID, *profile.Profile, bool) {
	ps := s.registered(f)
	if ps == nil {
		return 0, nil, false
	}
	return ps.ID, ps.Profile, true
}

// registered returns the profile with a fingerprint, nil if there is none. It takes no
// lock.
func (s *Store) registered(f profile.Fingerprint) *objects.Profile {
	for _, ps := range *s.profiles.Load() {
		if ps.Fingerprint() == f {
			return ps
		}
	}
	return nil
}

func (s *Store) profile(id tier.ProfileID) (*objects.Profile, error) {
	known := *s.profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *objects.Profile, id tier.ProfileID) int { return cmp.Compare(ps.ID, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
	}
	return known[at], nil
}

// Prefill returns the predicted cost of computing tokens; zero for a profile that is not
// registered. It takes no lock.
func (s *Store) Prefill(id tier.ProfileID) (predicted cost.Prefill, measured bool) {
	ps, err := s.profile(id)
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
func (s *Store) Costs() []ProfileCosts {
	var list []ProfileCosts
	for _, p := range *s.profiles.Load() {
		list = append(list, ProfileCosts{p.ID, p.Fingerprint(), p.Model, p.Costs.Snapshot()})
	}
	return list
}
