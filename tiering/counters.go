package tiering

import "errors"

// Counters counts since Open, apart from the gauges Leases and Quarantined. A
// hit is counted in tokens; so is a miss, as far as the store remembers how many
// tokens the key stood for (an unknown key counts 0).
type Counters struct {
	// By Match, per segment key and per question.
	HitSegments     uint64
	HitTokens       uint64
	MissSegments    [reasons]uint64 // by Reason
	MissTokens      [reasons]uint64
	PrefixHits      uint64
	PrefixHitTokens uint64
	PrefixMisses    [reasons]uint64

	// By Acquire and Load.
	Acquired       uint64
	AcquiredTokens uint64
	AcquireMisses  uint64
	Loaded         uint64
	LoadedTokens   uint64
	LoadMisses     uint64
	Leases         uint64 // live now
	Quarantined    uint64 // expired and not yet released, now
	LeasesExpired  uint64

	// By filling.
	Reserved        uint64 // objects begun
	Exists          uint64 // reservations refused because of another
	CommittedChunks uint64
	CommittedBytes  uint64
	Published       uint64
	PublishedBytes  uint64
	Aborted         [causes]uint64 // by client, death, corrupt, device, expiry

	RefusedFull  uint64
	RefusedQuota uint64
	RefusedBusy  uint64

	EvictedRoom      uint64 // objects, for room in their pool
	EvictedQuota     uint64 // objects, for their tenant's quota
	EvictedBytes     uint64 // of both
	Removed          uint64 // by an operator
	Demoted          uint64 // of the evicted, taken by the lower tier
	DemotionsRefused uint64

	Composed  uint64
	Rotated   uint64
	Assembled uint64
}

// Counters takes a snapshot.
func (s *Store) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters
}

func (c *Counters) miss(why Reason, tokens uint32) {
	c.MissSegments[why]++
	c.MissTokens[why] += uint64(tokens)
}

func (c *Counters) refused(err error) {
	switch {
	case errors.Is(err, ErrFull):
		c.RefusedFull++
	case errors.Is(err, ErrQuota):
		c.RefusedQuota++
	default:
		c.RefusedBusy++
	}
}

// String names a reason as metrics and people see it.
func (r Reason) String() string {
	return [...]string{"none", "unknown", "evicted", "pending", "removed", "refused", "aborted", "flag_only"}[r]
}

func (c cause) String() string {
	return [...]string{"client", "death", "corrupt", "device", "expiry"}[c]
}

// Each calls f with every counter and gauge in a fixed order, by the name it has
// in metrics. Reasons of misses are part of the name.
func (c *Counters) Each(f func(name string, value uint64)) {
	f("hit_segments", c.HitSegments)
	f("hit_tokens", c.HitTokens)
	for r := ReasonUnknown; r < ReasonFlagOnly; r++ {
		f("miss_segments_"+r.String(), c.MissSegments[r])
		f("miss_tokens_"+r.String(), c.MissTokens[r])
	}
	f("prefix_hits", c.PrefixHits)
	f("prefix_hit_tokens", c.PrefixHitTokens)
	for r := ReasonUnknown; r < reasons; r++ {
		f("prefix_misses_"+r.String(), c.PrefixMisses[r])
	}
	f("acquired", c.Acquired)
	f("acquired_tokens", c.AcquiredTokens)
	f("acquire_misses", c.AcquireMisses)
	f("loaded", c.Loaded)
	f("loaded_tokens", c.LoadedTokens)
	f("load_misses", c.LoadMisses)
	f("leases", c.Leases)
	f("leases_quarantined", c.Quarantined)
	f("leases_expired", c.LeasesExpired)
	f("reserved", c.Reserved)
	f("reserve_exists", c.Exists)
	f("committed_chunks", c.CommittedChunks)
	f("committed_bytes", c.CommittedBytes)
	f("published", c.Published)
	f("published_bytes", c.PublishedBytes)
	for why := range causes {
		f("aborted_"+why.String(), c.Aborted[why])
	}
	f("refused_full", c.RefusedFull)
	f("refused_quota", c.RefusedQuota)
	f("refused_busy", c.RefusedBusy)
	f("evicted_room", c.EvictedRoom)
	f("evicted_quota", c.EvictedQuota)
	f("evicted_bytes", c.EvictedBytes)
	f("removed", c.Removed)
	f("demoted", c.Demoted)
	f("demotions_refused", c.DemotionsRefused)
	f("composed", c.Composed)
	f("rotated", c.Rotated)
	f("assembled", c.Assembled)
}
