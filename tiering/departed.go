package tiering

import "github.com/spliced-kv/spliced/tiering/tier"

// departure is what became of a key.
type departure struct {
	key     [32]byte
	profile tier.ProfileID
	tenant  tier.TenantID
	reason  tier.Reason
	tokens  uint32
}

// departures remembers the last keys that left, so that a miss can say why. It
// is bounded: a new key pushes out the one noted longest ago. Guarded by the
// store's lock.
type departures struct {
	index *index[departure]
	ring  []*departure
	next  int // the oldest, once the ring is full
	limit int
}

func newDepartures(limit int) *departures {
	return &departures{index: newIndex[departure](), limit: limit}
}

// note records the end of an object, or of one that never came to be.
func (d *departures) note(dep departure) {
	if known := d.index.find(&dep.key); known != nil {
		*known = dep
		return
	}
	if len(d.ring) < d.limit {
		fresh := dep
		d.ring = append(d.ring, &fresh)
		d.index.put(&fresh.key, &fresh)
		return
	}
	oldest := d.ring[d.next]
	d.next = (d.next + 1) % d.limit
	d.index.remove(&oldest.key)
	*oldest = dep
	d.index.put(&oldest.key, oldest)
}

// why answers for a key that is not in the catalogue. What became of another
// tenant's or profile's key is not told.
func (d *departures) why(key *[32]byte, p tier.ProfileID, t tier.TenantID) (tier.Reason, uint32) {
	dep := d.index.find(key)
	if dep == nil || dep.profile != p || dep.tenant != t {
		return tier.ReasonUnknown, 0
	}
	return dep.reason, dep.tokens
}
