package tiering

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// profileState is a registered profile with what is worth computing once.
type profileState struct {
	*plan.Geometry
	id    tier.ProfileID
	ranks int
	model string

	costs *costs.Learned

	// Guarded by the store's lock.
	uses        int   // AddProfile without ReleaseProfile
	engines     []int // by rank, those that read HBM; nil before the first
	forgotten   bool  // nothing may be filled for it any more
	held        int   // objects, removed ones with leases included, without idle copies in HBM
	segments    int   // published
	checkpoints int
}

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
	ps := newProfileState(plan.NewGeometry(p, id, int64(s.cfg.PageBytes)), id, s.cfg.Cost)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.profiles.Load()
	next := slices.Clone(known)
	if len(next) >= s.cfg.MaxProfiles {
		i := slices.IndexFunc(next, s.forgettableLocked)
		if i < 0 {
			return 0, fmt.Errorf("profile %q: %d are registered and in use: %w", p.Identity().Model, len(next), tier.ErrBusy)
		}
		next[i].forgotten = true
		next = slices.Delete(next, i, i+1)
	}
	s.profileTop = id
	ps.uses = 1
	next = append(next, ps)
	s.profiles.Store(&next)
	return ps.id, nil
}

// reuseProfile counts a use of a profile that is registered.
func (s *Store) reuseProfile(p *profile.Profile) (tier.ProfileID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ps := range *s.profiles.Load() {
		if ps.Fingerprint() == p.Fingerprint() {
			ps.uses++
			return ps.id, true
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
	if err != nil || ps.uses <= 0 {
		panic(fmt.Sprintf("tiering: release of profile %d, which is not in use", id))
	}
	ps.uses--
}

// forgettableLocked tells whether nothing is held of a profile: idle copies in HBM of
// what is on disk do not count, since the next sweep drops them.
func (s *Store) forgettableLocked(ps *profileState) bool {
	if ps.uses > 0 || ps.segments > 0 || ps.checkpoints > 0 {
		return false
	}
	return ps.held == 0
}

// Profile answers a registered profile.
func (s *Store) Profile(id tier.ProfileID) (*profile.Profile, bool) {
	ps, err := s.profile(id)
	if err != nil {
		return nil, false
	}
	return ps.Profile, true
}

func (s *Store) profile(id tier.ProfileID) (*profileState, error) {
	known := *s.profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *profileState, id tier.ProfileID) int { return cmp.Compare(ps.id, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
	}
	return known[at], nil
}

func newProfileState(p *plan.Geometry, id tier.ProfileID, priors costs.Priors) *profileState {
	ps := &profileState{Geometry: p, id: id, ranks: p.TPSize(), model: p.Identity().Model}
	ps.costs = costs.New(p.Profile, priors)
	return ps
}
