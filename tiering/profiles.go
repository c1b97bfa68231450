package tiering

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// AddProfile registers a profile and counts one use of it; the same identity
// gets the same id while it is registered. When too many are, one that has
// neither uses nor objects is forgotten for it; ErrBusy when there is none. Ids
// are never reused.
func (s *Store) AddProfile(p *profile.Profile) (tier.ProfileID, error) {
	s.profileMu.Lock() // one at a time, so that what takes long is done without the store's lock
	defer s.profileMu.Unlock()
	if id, ok := s.reuseProfile(p); ok {
		return id, nil
	}
	id := s.profileTop + 1
	ps := objects.NewProfile(plan.NewGeometry(p, id, int64(s.cfg.PageBytes)), id, s.cfg.Cost)
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
	for _, ps := range *s.profiles.Load() {
		if ps.Fingerprint() == p.Fingerprint() {
			ps.Uses++
			return ps.ID, true
		}
	}
	return 0, false
}

// ReleaseProfile ends one use that AddProfile began. The profile stays known,
// and its objects stay, until its place is wanted.
func (s *Store) ReleaseProfile(id tier.ProfileID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ps, err := s.profile(id)
	if err != nil || ps.Uses <= 0 {
		panic(fmt.Sprintf("tiering: release of profile %d, which is not in use", id))
	}
	ps.Uses--
}

// forgettableLocked tells whether nothing is held of a profile: idle copies in HBM of
// what is on disk do not count, since the next sweep drops them.
func (s *Store) forgettableLocked(ps *objects.Profile) bool {
	if ps.Uses > 0 || ps.Segments > 0 || ps.Checkpoints > 0 {
		return false
	}
	return ps.Held == 0
}

// Profile answers a registered profile.
func (s *Store) Profile(id tier.ProfileID) (*profile.Profile, bool) {
	ps, err := s.profile(id)
	if err != nil {
		return nil, false
	}
	return ps.Profile, true
}

func (s *Store) profile(id tier.ProfileID) (*objects.Profile, error) {
	known := *s.profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *objects.Profile, id tier.ProfileID) int { return cmp.Compare(ps.ID, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
	}
	return known[at], nil
}

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
		list = append(list, ProfileCosts{p.ID, p.Model, p.Costs.Snapshot()})
	}
	return list
}
