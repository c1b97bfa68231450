package tiering

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Counters counts since Open, apart from the gauges Leases and Quarantined. A
// hit is counted in tokens; so is a miss, as far as the store remembers how many
// tokens the key stood for (an unknown key counts 0).
type Counters struct {
	// By Match, per segment key and per question.
	HitSegments     uint64               `count:"hit_segments"`
	HitTokens       uint64               `count:"hit_tokens"`
	MissSegments    [tier.Reasons]uint64 `count:"miss_segments_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"misses_total,reason=*" help:"Missed segments by reason."`
	MissTokens      [tier.Reasons]uint64 `count:"miss_tokens_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"miss_tokens_total,reason=*" help:"Tokens of missed segments by reason, as far as their size is known."`
	PrefixHits      uint64               `count:"prefix_hits"`
	PrefixHitTokens uint64               `count:"prefix_hit_tokens"`
	PrefixMisses    [tier.Reasons]uint64 `count:"prefix_misses_{,unknown,evicted,pending,removed,refused,aborted,flag_only}" prom:"prefix_misses_total,reason=*" help:"Matches that found no checkpoint, by reason."`
	// Of the hits, those in the lower tier.
	HitSegmentsDisk     uint64 `count:"hit_segments_disk"`
	HitTokensDisk       uint64 `count:"hit_tokens_disk"`
	PrefixHitsDisk      uint64 `count:"prefix_hits_disk"`
	PrefixHitTokensDisk uint64 `count:"prefix_hit_tokens_disk"`

	// By Acquire and Load.
	Acquired       uint64 `count:"acquired"`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses"`
	// Queries for all keys or none, for want of room.
	AcquireRefused uint64 `count:"acquire_refused"`
	Loaded         uint64 `count:"loaded"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses"`
	Leases         uint64 `count:"leases" prom:"leases" help:"Live leases on segments and checkpoints."`
	Quarantined    uint64 `count:"leases_quarantined" prom:"leases_quarantined" help:"Expired leases whose memory waits for the client."`
	LeasesExpired  uint64 `count:"leases_expired" prom:"lease_expired_total" help:"Leases that ended by time."`

	// By filling.
	// Objects begun.
	Reserved uint64 `count:"reserved"`
	// Reservations refused because of another.
	Exists          uint64         `count:"reserve_exists"`
	CommittedChunks uint64         `count:"committed_chunks"`
	CommittedBytes  uint64         `count:"committed_bytes" prom:"fetch_bytes_total,tier=dram,direction=in" help:"Bytes copied into a tier (dram: from clients, disk: from memory) and out of it."`
	Published       uint64         `count:"published" prom:"published_total" help:"Objects published."`
	PublishedBytes  uint64         `count:"published_bytes" prom:"published_bytes_total" help:"Bytes published, over all ranks."`
	Aborted         [causes]uint64 `count:"aborted_{client,death,corrupt,device,expiry}" prom:"aborted_total,reason=*" help:"Fills that ended without publication, by reason."`

	RefusedFull  uint64 `count:"refused_full" prom:"admissions_refused_total,reason=full" help:"Reservations refused by reason."`
	RefusedQuota uint64 `count:"refused_quota" prom:"admissions_refused_total,reason=quota"`
	RefusedBusy  uint64 `count:"refused_busy" prom:"admissions_refused_total,reason=busy"`

	// What left memory: EvictedRoom + EvictedQuota = Demoted + DemotionsRefused +
	// DemotionsFailed + Dropped + those still being written.
	EvictedRoom uint64 `count:"evicted_room" prom:"evictions_total,tier=dram,reason=room" help:"Objects that left a tier by reason: room, quota, operator, and on disk parent (the checkpoint they extend left). From memory most are still on disk, see demotions_total."`
	// Objects, for their tenant's quota.
	EvictedQuota uint64 `count:"evicted_quota" prom:"evictions_total,tier=dram,reason=quota"`
	EvictedBytes uint64 `count:"evicted_bytes" prom:"evicted_bytes_total,tier=dram" help:"Bytes evicted."`
	Demoted      uint64 `count:"demoted" prom:"demotions_total,result=taken" help:"Objects that left memory, by what became of them below: taken (the disk holds them), refused, failed, dropped (not offered). All but taken are lost." part:"disk"`
	// By the lower tier.
	DemotionsRefused uint64 `count:"demotions_refused" prom:"demotions_total,result=refused" part:"disk"`
	// The write ended with an error.
	DemotionsFailed uint64 `count:"demotions_failed" prom:"demotions_total,result=failed" part:"disk"`
	// Not offered: no lower tier, or for a quota.
	Dropped uint64 `count:"dropped" prom:"demotions_total,result=dropped" part:"disk"`
	// By an operator.
	Removed uint64 `count:"removed" prom:"evictions_total,tier=dram,reason=operator"`
	// Checkpoints that gave back their states only, since one other extends them,
	// and what became of them: whole again, or gone with the last child.
	Thinned      uint64 `count:"thinned"`
	ThinnedBytes uint64 `count:"thinned_bytes"`
	// Saved again.
	ThinnedFilled       uint64 `count:"thinned_filled"`
	ThinnedPromoted     uint64 `count:"thinned_promoted"`
	ThinnedDropped      uint64 `count:"thinned_dropped"`
	ThinnedDroppedBytes uint64 `count:"thinned_dropped_bytes"`

	// Into the lower tier.
	Written         uint64                       `count:"written" prom:"tier_written_total,tier=disk" help:"Objects that a tier came to hold, from the one above." part:"disk"`
	WrittenBytes    uint64                       `count:"written_bytes"`
	Writing         uint64                       `count:"writing" prom:"tier_writing,tier=disk" help:"Objects being written to a tier now." part:"disk"`
	WritesFailed    uint64                       `count:"writes_failed" prom:"tier_writes_failed_total,tier=disk" help:"Writes that a tier took and did not end well." part:"disk"`
	WritesRefused   [refusals]uint64             `count:"writes_refused_{busy,full,quota,unavailable,other}" prom:"tier_writes_refused_total,tier=disk,reason=*" help:"Writes that a tier did not take, by reason. Busy ones are tried again." part:"disk"`
	Cleaned         uint64                       `count:"cleaned" prom:"cleaned_total" help:"Writes begun because memory filled up." part:"disk"`
	CorruptInMemory uint64                       `count:"spoilt_in_memory" prom:"spoilt_in_memory_total" help:"Objects not written because their bytes in memory were not those published." part:"disk"`
	TrimmedBytes    uint64                       `count:"trimmed_bytes" prom:"tier_trimmed_bytes_total,tier=disk" help:"Bytes given up in a tier for a tenant's quota." part:"disk"`
	Acknowledged    [tier.LevelSynced + 1]uint64 `count:"acknowledged_{,memory,logged,synced}" prom:"acknowledged_total,level=*" help:"Publications that asked for more than memory, by the level reached when they were acknowledged." part:"disk"`

	// Out of it.
	Promotions     [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,unavailable,no_room,stopped,,}" prom:"promotions_total,result=*" help:"Objects read into memory, by outcome: done, corrupt, gone (left meanwhile), unavailable (the disk does not read now), no_room (in memory), stopped." part:"disk"`
	PromotedBytes  uint64                    `count:"promoted_bytes" prom:"promoted_bytes_total" help:"Bytes of objects read into memory." part:"disk"`
	Promoting      uint64                    `count:"promoting" prom:"promotions_in_flight" help:"Objects being read into memory, or waiting to be." part:"disk"`
	PromotionsBusy uint64                    `count:"promotions_busy" prom:"promotions_refused_total" help:"Promotions not begun because too many were under way." part:"disk"`
	// Begun = used + wasted + failed + what is in memory or on the way unused.
	ReadAheadBegun uint64 `count:"read_ahead_begun" prom:"read_ahead_total,result=begun" help:"Objects read because a match named them, by what became of that: begun, used (a client took a lease), wasted (left memory unused), failed, dropped (not begun: over a bound)." part:"disk"`
	ReadAheadUsed  uint64 `count:"read_ahead_used" prom:"read_ahead_total,result=used" part:"disk"`
	// Left memory without a use.
	ReadAheadWasted uint64 `count:"read_ahead_wasted" prom:"read_ahead_total,result=wasted" part:"disk"`
	ReadAheadFailed uint64 `count:"read_ahead_failed" prom:"read_ahead_total,result=failed" part:"disk"`
	// Not begun: over a bound.
	ReadAheadDropped uint64 `count:"read_ahead_dropped" prom:"read_ahead_total,result=dropped" part:"disk"`

	HBM HBMCounters `count:"hbm_" part:"hbm"`

	plan.Counters
}

// Counters takes a snapshot.
func (s *Store) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countersLocked()
}

// countersLocked adds what promotions and plans count themselves.
func (s *Store) countersLocked() Counters {
	c := s.counters
	if s.up != nil {
		stats := s.up.Stats()
		c.Promotions, c.PromotionsBusy, c.Promoting = stats.Ended, stats.Busy, uint64(s.up.Len())
	}
	if s.hbm != nil {
		stats := s.hbm.up.Stats()
		c.HBM.Promotions, c.HBM.PromotionsBusy, c.HBM.Promoting = stats.Ended, stats.Busy, uint64(s.hbm.up.Len())
	}
	c.Counters, c.HBM.Ran = s.plans.Counters()
	return c
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

// Each calls f with every counter and gauge in a fixed order, by its name.
func (c *Counters) Each(f func(name string, value uint64)) { metric.Each(c, f) }
