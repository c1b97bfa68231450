package tiering

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// plannedLocked prepares the fetch of an object that another node has just computed for
// this one. A running search for the object will fetch it even if computing it takes less
// time. An earlier answer that the object is absent is outdated and is dropped.
func (rem *remote) plannedLocked(id objects.Identity) {
	switch k := rem.lookups[id]; {
	case k == nil:
	case k.search != nil:
		k.planned = true
	case k.copy == nil:
		delete(rem.lookups, id)
	}
}

// Room returns how many bytes segments of the given interior tokens need, over all ranks
// and with their token ids. The second result is the number of bytes that the pool and the
// tenant's quota would have for these segments if everything evictable were evicted. Room
// reads memory only.
func (s *Store) Room(id tier.ProfileID, tenant tier.TenantID, interiors, tokens []int) (need, free int64, err error) {
	p, t, err := s.scope(id, tenant, 0)
	if err != nil {
		return 0, 0, err
	}
	if len(interiors) != len(tokens) {
		return 0, 0, fmt.Errorf("room for %d segments of %d lengths: %w", len(interiors), len(tokens), tier.ErrInvalid)
	}
	for i, n := range interiors {
		size := s.objects.Memory.SizeOf(p, p.SegmentParts(n), tokens[i])
		need += size.Charge()
	}
	pool := s.objects.Pools[objects.PublicPool]
	s.mu.Lock()
	defer s.mu.Unlock()
	free = pool.Budget - pool.Pinned
	if t.QuotaBytes > 0 {
		free = min(free, t.QuotaBytes-t.Pinned)
	}
	return need, max(free, 0), nil
}

// CostModel returns the current cost predictions for a profile's engines and links. The
// result is never modified.
func (reg *registry) CostModel(id tier.ProfileID) (*cost.Model, error) {
	p, err := reg.profile(id)
	if err != nil {
		return nil, err
	}
	return p.Costs.Model(), nil
}
