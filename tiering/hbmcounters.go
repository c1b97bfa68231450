package tiering

// HBMCounters counts what happens in HBM since Open, apart from the gauges Copies,
// Promoting and Lost. All are zero without HBM.
type HBMCounters struct {
	// By Match for clients of the device: of its hits, those with a copy in HBM for
	// some rank. They are not among those in the lower tier.
	HitSegments     uint64
	HitTokens       uint64
	PrefixHits      uint64
	PrefixHitTokens uint64

	// By AcquireResident and LoadResident.
	Acquired       uint64
	AcquiredTokens uint64
	AcquireMisses  uint64
	Loaded         uint64
	LoadedTokens   uint64
	LoadMisses     uint64

	Copies         uint64                 // in HBM and found, now
	Promoting      uint64                 // wanted or running, now
	Promotions     [hbmOutcomes]uint64    // by how they ended
	PromotedBytes  uint64                 // copied and verified
	PromotionsBusy uint64                 // not begun: too many
	MatchesDropped uint64                 // hits of matches that were not looked at: too many
	Dropped        [hbmDropReasons]uint64 // copies that lookups do not find any more, by why
	DroppedBytes   uint64                 // of these
	Composed       uint64                 // carried out in HBM, and not among the others
	Rotated        uint64
	Assembled      uint64
	Replayed       uint64
	Lost           uint64 // 1 once the device is lost
}

// hbmOutcome is how a promotion into HBM ended.
type hbmOutcome uint8

const (
	hbmDone    hbmOutcome = iota
	hbmCorrupt            // the device's digests of the destination are not the object's
	hbmGone               // the object has left memory, or lost its states
	hbmNoRoom             // in HBM, for the pool, the tenant or what the device needs to copy
	hbmStopped            // the store is closing, or the object was removed
	hbmLost               // the device cannot be used any more
	hbmFailed             // the device refused the copy, and is not lost
	hbmOutcomes
)

func (o hbmOutcome) String() string {
	return [...]string{"done", "corrupt", "gone", "no_room", "stopped", "lost", "failed"}[o]
}

// hbmDrop is why a copy left HBM. It was never the only one.
type hbmDrop uint8

const (
	dropRoom    hbmDrop = iota // another copy, or a buffer, needed its room
	dropQuota                  // its tenant is at its quota
	dropObject                 // its object has left every other tier, or has other bytes now
	dropRemoved                // by an operator
	dropLost                   // with the device
	hbmDropReasons
)

func (d hbmDrop) String() string {
	return [...]string{"room", "quota", "object", "removed", "lost"}[d]
}

func (c *Counters) eachHBM(f func(name string, value uint64)) {
	h := &c.HBM
	f("hbm_hit_segments", h.HitSegments)
	f("hbm_hit_tokens", h.HitTokens)
	f("hbm_prefix_hits", h.PrefixHits)
	f("hbm_prefix_hit_tokens", h.PrefixHitTokens)
	f("hbm_acquired", h.Acquired)
	f("hbm_acquired_tokens", h.AcquiredTokens)
	f("hbm_acquire_misses", h.AcquireMisses)
	f("hbm_loaded", h.Loaded)
	f("hbm_loaded_tokens", h.LoadedTokens)
	f("hbm_load_misses", h.LoadMisses)
	f("hbm_copies", h.Copies)
	f("hbm_promoting", h.Promoting)
	for how := range hbmOutcomes {
		f("hbm_promotions_"+how.String(), h.Promotions[how])
	}
	f("hbm_promoted_bytes", h.PromotedBytes)
	f("hbm_promotions_busy", h.PromotionsBusy)
	f("hbm_matches_dropped", h.MatchesDropped)
	for why := range hbmDropReasons {
		f("hbm_dropped_"+why.String(), h.Dropped[why])
	}
	f("hbm_dropped_bytes", h.DroppedBytes)
	f("hbm_composed", h.Composed)
	f("hbm_rotated", h.Rotated)
	f("hbm_assembled", h.Assembled)
	f("hbm_replayed", h.Replayed)
	f("hbm_lost", h.Lost)
}
