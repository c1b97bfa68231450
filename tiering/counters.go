package tiering

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Counters counts since Open, apart from the gauges Leases and Quarantined. A
// hit is counted in tokens; so is a miss, as far as the store remembers how many
// tokens the key stood for (an unknown key counts 0).
type Counters struct {
	// By Match, per segment key and per question.
	HitSegments     uint64
	HitTokens       uint64
	MissSegments    [tier.Reasons]uint64 // by Reason
	MissTokens      [tier.Reasons]uint64
	PrefixHits      uint64
	PrefixHitTokens uint64
	PrefixMisses    [tier.Reasons]uint64
	// Of the hits, those in the lower tier.
	HitSegmentsDisk     uint64
	HitTokensDisk       uint64
	PrefixHitsDisk      uint64
	PrefixHitTokensDisk uint64

	// By Acquire and Load.
	Acquired       uint64
	AcquiredTokens uint64
	AcquireMisses  uint64
	AcquireRefused uint64 // queries for all keys or none, for want of room
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

	// What left memory: EvictedRoom + EvictedQuota = Demoted + DemotionsRefused +
	// DemotionsFailed + Dropped + those still being written.
	EvictedRoom      uint64 // objects, for room in their pool
	EvictedQuota     uint64 // objects, for their tenant's quota
	EvictedBytes     uint64 // of these objects
	Demoted          uint64 // the lower tier holds them
	DemotionsRefused uint64 // by the lower tier
	DemotionsFailed  uint64 // the write ended with an error
	Dropped          uint64 // not offered: no lower tier, or for a quota
	Removed          uint64 // by an operator
	// Checkpoints that gave back their states only, since one other extends them,
	// and what became of them: whole again, or gone with the last child.
	Thinned             uint64
	ThinnedBytes        uint64
	ThinnedFilled       uint64 // saved again
	ThinnedPromoted     uint64
	ThinnedDropped      uint64
	ThinnedDroppedBytes uint64

	// Into the lower tier.
	Written        uint64 // objects that it came to hold
	WrittenBytes   uint64
	Writing        uint64 // now
	WritesFailed   uint64
	WritesRefused  [refusals]uint64 // busy, full, quota, unavailable, other
	Cleaned        uint64           // writes begun by the cleaner
	SpoiltInMemory uint64           // objects whose bytes were not those published
	TrimmedBytes   uint64           // given up there for a tenant's quota
	Acknowledged   [tier.LevelSynced + 1]uint64

	// Out of it.
	Promotions     [promoteOutcomes]uint64 // by how they ended
	PromotedBytes  uint64
	Promoting      uint64 // wanted or running, now
	PromotionsBusy uint64 // not begun: too many at once
	// Begun = used + wasted + failed + what is in memory or on the way unused.
	ReadAheadBegun   uint64
	ReadAheadUsed    uint64
	ReadAheadWasted  uint64 // left memory without a use
	ReadAheadFailed  uint64
	ReadAheadDropped uint64 // not begun: over a bound

	HBM HBMCounters

	Composed  uint64
	Rotated   uint64
	Assembled uint64

	// Buffers of rows. Rows appended = accepted + dropped + those drafted now, and
	// those of buffers that ended with drafts.
	Buffers       uint64 // now
	BuffersOpened uint64
	RowsAppended  uint64
	RowsAccepted  uint64
	RowsDropped   uint64
	Replayed      uint64 // answers
	RowsReplayed  uint64 // of these
	BufferFlushes uint64
}

// Counters takes a snapshot.
func (s *Store) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters
}

func (c *Counters) miss(why tier.Reason, tokens uint32) {
	c.MissSegments[why]++
	c.MissTokens[why] += uint64(tokens)
}

func (c *Counters) refused(err error) {
	switch {
	case errors.Is(err, tier.ErrFull):
		c.RefusedFull++
	case errors.Is(err, tier.ErrQuota):
		c.RefusedQuota++
	default:
		c.RefusedBusy++
	}
}

// refusal is why the lower tier did not take a write.
type refusal uint8

const (
	refusalBusy refusal = iota
	refusalFull
	refusalQuota
	refusalUnavailable
	refusalOther
	refusals
)

func (r refusal) String() string {
	return [...]string{"busy", "full", "quota", "unavailable", "other"}[r]
}

func (c *Counters) writeRefused(err error) {
	why := refusalOther
	for r, kind := range [...]error{tier.ErrBusy, tier.ErrFull, tier.ErrQuota, tier.ErrUnavailable} {
		if errors.Is(err, kind) {
			why = refusal(r)
			break
		}
	}
	c.WritesRefused[why]++
}

func (c cause) String() string {
	return [...]string{"client", "death", "corrupt", "device", "expiry"}[c]
}

// Each calls f with every counter and gauge in a fixed order, by the name it has
// in metrics. Reasons of misses are part of the name.
func (c *Counters) Each(f func(name string, value uint64)) {
	f("hit_segments", c.HitSegments)
	f("hit_tokens", c.HitTokens)
	for r := tier.ReasonUnknown; r < tier.ReasonFlagOnly; r++ {
		f("miss_segments_"+r.String(), c.MissSegments[r])
		f("miss_tokens_"+r.String(), c.MissTokens[r])
	}
	f("prefix_hits", c.PrefixHits)
	f("prefix_hit_tokens", c.PrefixHitTokens)
	for r := tier.ReasonUnknown; r < tier.Reasons; r++ {
		f("prefix_misses_"+r.String(), c.PrefixMisses[r])
	}
	f("hit_segments_disk", c.HitSegmentsDisk)
	f("hit_tokens_disk", c.HitTokensDisk)
	f("prefix_hits_disk", c.PrefixHitsDisk)
	f("prefix_hit_tokens_disk", c.PrefixHitTokensDisk)
	f("acquired", c.Acquired)
	f("acquired_tokens", c.AcquiredTokens)
	f("acquire_misses", c.AcquireMisses)
	f("acquire_refused", c.AcquireRefused)
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
	f("thinned", c.Thinned)
	f("thinned_bytes", c.ThinnedBytes)
	f("thinned_filled", c.ThinnedFilled)
	f("thinned_promoted", c.ThinnedPromoted)
	f("thinned_dropped", c.ThinnedDropped)
	f("thinned_dropped_bytes", c.ThinnedDroppedBytes)
	c.eachLower(f)
	c.eachHBM(f)
	f("composed", c.Composed)
	f("rotated", c.Rotated)
	f("assembled", c.Assembled)
	f("buffers", c.Buffers)
	f("buffers_opened", c.BuffersOpened)
	f("buffer_rows_appended", c.RowsAppended)
	f("buffer_rows_accepted", c.RowsAccepted)
	f("buffer_rows_dropped", c.RowsDropped)
	f("replayed", c.Replayed)
	f("buffer_rows_replayed", c.RowsReplayed)
	f("buffer_flushes", c.BufferFlushes)
}

func (c *Counters) eachLower(f func(name string, value uint64)) {
	f("demoted", c.Demoted)
	f("demotions_refused", c.DemotionsRefused)
	f("demotions_failed", c.DemotionsFailed)
	f("dropped", c.Dropped)
	f("written", c.Written)
	f("written_bytes", c.WrittenBytes)
	f("writing", c.Writing)
	f("writes_failed", c.WritesFailed)
	for why := range refusals {
		f("writes_refused_"+why.String(), c.WritesRefused[why])
	}
	f("cleaned", c.Cleaned)
	f("spoilt_in_memory", c.SpoiltInMemory)
	f("trimmed_bytes", c.TrimmedBytes)
	for level := tier.LevelMemory; level <= tier.LevelSynced; level++ {
		f("acknowledged_"+level.String(), c.Acknowledged[level])
	}
	for how := range promoteOutcomes {
		f("promotions_"+how.String(), c.Promotions[how])
	}
	f("promoted_bytes", c.PromotedBytes)
	f("promoting", c.Promoting)
	f("promotions_busy", c.PromotionsBusy)
	f("read_ahead_begun", c.ReadAheadBegun)
	f("read_ahead_used", c.ReadAheadUsed)
	f("read_ahead_wasted", c.ReadAheadWasted)
	f("read_ahead_failed", c.ReadAheadFailed)
	f("read_ahead_dropped", c.ReadAheadDropped)
}
