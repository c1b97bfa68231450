// Package stats has the counters of a store, which the store's lock guards. Each counter
// is declared once, with its names in listings and in Prometheus (package metric).
package stats

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Counters counts events since Open, except for gauges (Leases, Quarantined and the counts
// of work in progress). Hits are counted in segments and in tokens. So are misses, as far
// as the store remembers how many tokens the key had; an unknown key counts 0 tokens.
type Counters struct {
	// Match: per segment key, and per query for prefixes.
	HitSegments uint64 `count:"hit_segments"`
	HitTokens   uint64 `count:"hit_tokens"`
	// The part of HitSegments in which only the other variant of a segment was cached.
	HitSegmentsVariant uint64               `count:"hit_segments_variant" prom:"variant_hits_total" help:"Hits of segments that were captured after a primer where one without was preferred, or without one where one after it was: it is reused, at a lower quality."`
	MissSegments       [tier.Reasons]uint64 `count:"miss_segments_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"misses_total,reason=*" help:"Segment keys that match was asked for and missed, by reason."`
	MissTokens         [tier.Reasons]uint64 `count:"miss_tokens_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"miss_tokens_total,reason=*" help:"Tokens of segment keys that match was asked for and missed, by reason, as far as a key is known to stand for any: one that was never seen counts none. What requests missed is served_missed_tokens_total."`
	PrefixHits         uint64               `count:"prefix_hits"`
	PrefixHitTokens    uint64               `count:"prefix_hit_tokens"`
	PrefixMisses       [tier.Reasons]uint64 `count:"prefix_misses_{,unknown,evicted,pending,removed,refused,aborted,flag_only}" prom:"prefix_misses_total,reason=*" help:"Matches that found no checkpoint, by reason."`
	// Hits in the lower tier.
	HitSegmentsDisk     uint64 `count:"hit_segments_disk"`
	HitTokensDisk       uint64 `count:"hit_tokens_disk"`
	PrefixHitsDisk      uint64 `count:"prefix_hits_disk"`
	PrefixHitTokensDisk uint64 `count:"prefix_hit_tokens_disk"`
	// Prompts searched by Known. Its results also count among the hits above.
	KnownSearches uint64 `count:"known_searches" prom:"known_searches_total" help:"Prompts in which held segments were looked for by their tokens."`
	KnownSegments uint64 `count:"known_segments" prom:"known_segments_total" help:"Segments found by their tokens."`
	KnownTokens   uint64 `count:"known_tokens" prom:"known_tokens_total" help:"Interior tokens of segments found by their tokens."`
	// Segments that the search found, but whose key was not a hit.
	KnownGone uint64 `count:"known_gone"`
	// Tokens at which the search did not try all lengths.
	KnownUntried uint64 `count:"known_untried" prom:"known_untried_total" help:"Tokens of searched prompts at which not every length of segment was tried, since too many segments begin alike."`

	// Acquire and Load.
	Acquired       uint64 `count:"acquired"`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses"`
	// All-or-none queries that were refused for lack of room.
	AcquireRefused uint64 `count:"acquire_refused"`
	Loaded         uint64 `count:"loaded"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses"`
	Leases         uint64 `count:"leases" prom:"leases" help:"Live leases on segments and checkpoints."`
	Quarantined    uint64 `count:"leases_quarantined" prom:"leases_quarantined" help:"Expired leases whose memory waits for the client."`
	LeasesExpired  uint64 `count:"leases_expired" prom:"lease_expired_total" help:"Leases that ended by time."`

	// Fills: objects whose fill began.
	Reserved uint64 `count:"reserved"`
	// Reservations refused because the share is stored or being filled already.
	Exists uint64 `count:"reserve_exists"`
	// Bytes of the shares of these reservations.
	ExistsBytes     uint64         `count:"reserve_exists_bytes" prom:"dedup_saved_bytes_total" help:"Bytes that were neither sent nor kept a second time: the shares of ranks whose reservation was answered exists, since that key is held or being filled already."`
	CommittedChunks uint64         `count:"committed_chunks"`
	CommittedBytes  uint64         `count:"committed_bytes" prom:"fetch_bytes_total,tier=dram,direction=in" help:"Bytes copied into a tier (dram: from clients, disk: from memory) and out of it. Of peer: in came from other members, out was sent to them."`
	Published       uint64         `count:"published" prom:"published_total" help:"Objects published."`
	Packed          uint64         `count:"packed" prom:"packed_total" help:"Segments that were packed before they were published, as the tolerances of their profile allow: transitions and end-states, keys and values."`
	PackedAwayBytes uint64         `count:"packed_away_bytes" prom:"packed_away_bytes_total" help:"Bytes that published segments take less than they were written with, since they were packed."`
	PackNanos       uint64         `count:"pack_nanos"`
	PublishedBytes  uint64         `count:"published_bytes" prom:"published_bytes_total" help:"Bytes published, over all ranks."`
	Aborted         [Causes]uint64 `count:"aborted_{client,death,corrupt,device,expiry}" prom:"aborted_total,reason=*" help:"Fills that ended without publication, by reason."`

	RefusedFull  uint64 `count:"refused_full" prom:"admissions_refused_total,reason=full" help:"Reservations refused by reason."`
	RefusedQuota uint64 `count:"refused_quota" prom:"admissions_refused_total,reason=quota"`
	RefusedBusy  uint64 `count:"refused_busy" prom:"admissions_refused_total,reason=busy"`

	// Evictions from memory: EvictedRoom + EvictedQuota = Demoted + DemotionsRefused +
	// DemotionsFailed + Dropped + those still being written.
	EvictedRoom uint64 `count:"evicted_room" prom:"evictions_total,tier=dram,reason=room" help:"Objects that left a tier by reason: room, quota, operator, and on disk parent (the checkpoint they extend left). From memory most are still on disk, see demotions_total."`
	// Objects evicted for their tenant's quota.
	EvictedQuota uint64 `count:"evicted_quota" prom:"evictions_total,tier=dram,reason=quota"`
	EvictedBytes uint64 `count:"evicted_bytes" prom:"evicted_bytes_total,tier=dram" help:"Bytes evicted."`
	Demoted      uint64 `count:"demoted" prom:"demotions_total,result=taken" help:"Objects that left memory, by what became of them below: taken (the disk holds them), refused, failed, dropped (not offered). All but taken are lost." part:"disk"`
	// The lower tier refused the write.
	DemotionsRefused uint64 `count:"demotions_refused" prom:"demotions_total,result=refused" part:"disk"`
	// The write ended with an error.
	DemotionsFailed uint64 `count:"demotions_failed" prom:"demotions_total,result=failed" part:"disk"`
	// Not offered to the lower tier: there is none, or the eviction was for a quota.
	Dropped uint64 `count:"dropped" prom:"demotions_total,result=dropped" part:"disk"`
	// Removed by an operator.
	Removed uint64 `count:"removed" prom:"evictions_total,tier=dram,reason=operator"`
	// Checkpoints that lost only their states, since exactly one other extends them. Later
	// their states were saved again or promoted, or they were removed with their last child.
	Stripped      uint64 `count:"thinned"`
	StrippedBytes uint64 `count:"thinned_bytes"`
	// States saved again by a client.
	StrippedFilled       uint64 `count:"thinned_filled"`
	StrippedPromoted     uint64 `count:"thinned_promoted"`
	StrippedDropped      uint64 `count:"thinned_dropped"`
	StrippedDroppedBytes uint64 `count:"thinned_dropped_bytes"`

	// Writes to the lower tier.
	Written         uint64                       `count:"written" prom:"tier_written_total,tier=disk" help:"Objects that a tier came to hold, from the one above." part:"disk"`
	WrittenBytes    uint64                       `count:"written_bytes"`
	Writing         uint64                       `count:"writing" prom:"tier_writing,tier=disk" help:"Objects being written to a tier now." part:"disk"`
	WritesFailed    uint64                       `count:"writes_failed" prom:"tier_writes_failed_total,tier=disk" help:"Writes that a tier took and did not end well." part:"disk"`
	WritesRefused   [refusals]uint64             `count:"writes_refused_{busy,full,quota,unavailable,other}" prom:"tier_writes_refused_total,tier=disk,reason=*" help:"Writes that a tier did not take, by reason. Busy ones are tried again." part:"disk"`
	Cleaned         uint64                       `count:"cleaned" prom:"cleaned_total" help:"Writes begun because memory filled up." part:"disk"`
	CorruptInMemory uint64                       `count:"spoilt_in_memory" prom:"spoilt_in_memory_total" help:"Objects not written because their bytes in memory were not those published." part:"disk"`
	TrimmedBytes    uint64                       `count:"trimmed_bytes" prom:"tier_trimmed_bytes_total,tier=disk" help:"Bytes given up in a tier for a tenant's quota." part:"disk"`
	Acknowledged    [tier.LevelSynced + 1]uint64 `count:"acknowledged_{,memory,logged,synced}" prom:"acknowledged_total,level=*" help:"Publications that asked for more than memory, by the level reached when they were acknowledged." part:"disk"`

	// Reads from the lower tier.
	Promotions     [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,unavailable,no_room,stopped,,}" prom:"promotions_total,result=*" help:"Objects read into memory, by outcome: done, corrupt, gone (left meanwhile), unavailable (the disk does not read now), no_room (in memory), stopped." part:"disk"`
	PromotedBytes  uint64                    `count:"promoted_bytes" prom:"promoted_bytes_total" help:"Bytes of objects read into memory." part:"disk"`
	Promoting      uint64                    `count:"promoting" prom:"promotions_in_flight" help:"Objects being read into memory, or waiting to be." part:"disk"`
	PromotionsBusy uint64                    `count:"promotions_busy" prom:"promotions_refused_total" help:"Promotions not begun because too many were under way." part:"disk"`
	// ReadAheadBegun = ReadAheadUsed + ReadAheadWasted + ReadAheadFailed + the objects in
	// memory or in flight that are not used yet.
	ReadAheadBegun uint64 `count:"read_ahead_begun" prom:"read_ahead_total,result=begun" help:"Objects read because a match named them, by what became of that: begun, used (a client took a lease), wasted (left memory unused), failed, dropped (not begun: over a bound)." part:"disk"`
	ReadAheadUsed  uint64 `count:"read_ahead_used" prom:"read_ahead_total,result=used" part:"disk"`
	// Evicted or timed out without a use.
	ReadAheadWasted uint64 `count:"read_ahead_wasted" prom:"read_ahead_total,result=wasted" part:"disk"`
	ReadAheadFailed uint64 `count:"read_ahead_failed" prom:"read_ahead_total,result=failed" part:"disk"`
	// Not begun, because of a bound.
	ReadAheadDropped uint64 `count:"read_ahead_dropped" prom:"read_ahead_total,result=dropped" part:"disk"`

	Beyond Beyond `count:"peer_" part:"peer"`

	// The hits of Beyond that are in a store shared by nodes.
	Object ObjectHits `count:"object_"`
	// Copies of objects that this node may evict.
	Offload Offload `count:"offload_" part:"peer"`

	HBM HBM `count:"hbm_" part:"hbm"`

	plan.Counters
}

// Miss counts a missed segment.
func (c *Counters) Miss(why tier.Reason, tokens uint32) {
	c.MissSegments[why]++
	c.MissTokens[why] += uint64(tokens)
}

// Refused counts a reservation for which there was no room.
func (c *Counters) Refused(err error) {
	switch {
	case errors.Is(err, tier.ErrFull):
		c.RefusedFull++
	case errors.Is(err, tier.ErrQuota):
		c.RefusedQuota++
	default:
		c.RefusedBusy++
	}
}

// refusal is why the lower tier or an outlet refused an object.
type refusal uint8

const (
	RefusalBusy refusal = iota
	RefusalFull
	RefusalQuota
	RefusalUnavailable
	RefusalOther
	refusals
)

// WriteRefused counts a write that the lower tier refused.
func (c *Counters) WriteRefused(err error) { c.WritesRefused[refusalOf(err)]++ }

// OffloadRefused counts a copy that no outlet accepted.
func (c *Counters) OffloadRefused(err error) { c.Offload.Refused[refusalOf(err)]++ }

func refusalOf(err error) refusal {
	for r, kind := range [...]error{tier.ErrBusy, tier.ErrFull, tier.ErrQuota, tier.ErrUnavailable} {
		if errors.Is(err, kind) {
			return refusal(r)
		}
	}
	return RefusalOther
}

// Each calls f with the name and value of every counter and gauge, in a fixed order.
func (c *Counters) Each(f func(name string, value uint64)) { metric.Each(c, f) }

// Beyond counts events that concern objects outside the node, since Open. Finding and
// Fetching are gauges. All are zero without a Remote.
type Beyond struct {
	// Match: hits that are believed to be outside the node. Their tokens are counted if known.
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`

	Finds     [transfer.Outcomes]uint64 `count:"finds_{done,,,unavailable,busy,stopped,,}" prom:"peer_finds_total,result=*" help:"Questions to peers for what this node lacks, by outcome: done, unavailable (nobody answered, or not in time), busy, stopped."`
	FindsBusy uint64                    `count:"finds_refused" prom:"peer_finds_refused_total" help:"Questions to peers not asked because too many were under way."`
	Finding   uint64                    `count:"finding" prom:"peer_finds_in_flight" help:"Questions to peers that wait or run."`
	// Objects that no source had although there was a hint.
	FindMisses uint64 `count:"find_misses" prom:"peer_find_misses_total,reason=absent" help:"Objects that a peer was believed to have and could not be had, by reason: absent, wrong (what a peer said of it cannot be)."`
	FindsWrong uint64 `count:"find_wrong" prom:"peer_find_misses_total,reason=wrong"`
	NotWorth   uint64 `count:"not_worth" prom:"peer_not_worth_total" help:"Objects not fetched since computing their tokens is faster."`

	Fetches      [transfer.Outcomes]uint64 `count:"fetches_{done,corrupt,gone,unavailable,no_room,stopped,,}" prom:"peer_fetches_total,result=*" help:"Objects fetched from peers into memory, by outcome: done, corrupt, gone (left the peer meanwhile), unavailable (the peer does not send), no_room (in memory), stopped."`
	FetchedBytes uint64                    `count:"fetched_bytes" prom:"peer_fetched_bytes_total" help:"Bytes of objects fetched from peers into memory."`
	Fetching     uint64                    `count:"fetching" prom:"peer_fetches_in_flight" help:"Objects being fetched from peers, or waiting to be."`
}

// ObjectHits counts hits of Match in a store shared by nodes.
type ObjectHits struct {
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`
}

// Offload counts copies sent to other nodes, or to a store shared by nodes, since Open. Sending
// and SendingBytes are gauges. Offered = Sent + Failed + the sum of Refused + Sending.
type Offload struct {
	Offered      uint64           `count:"offered" prom:"offloads_total,result=offered" help:"Objects of which a copy was to go to the object store or to another node, by result: offered, sent, failed, and without being offered: elsewhere (others are believed to have it), not_worth (computing its tokens is faster than fetching them back), no_room (too much of the pool is on its way already), chain (what it extends cannot be sent)."`
	Sent         uint64           `count:"sent" prom:"offloads_total,result=sent"`
	SentBytes    uint64           `count:"sent_bytes" prom:"offloaded_bytes_total" help:"Bytes of objects of which a copy was sent."`
	Failed       uint64           `count:"failed" prom:"offloads_total,result=failed"`
	Refused      [refusals]uint64 `count:"refused_{busy,full,quota,unavailable,other}" prom:"offloads_refused_total,reason=*" help:"Copies that nobody took, by the last one's reason."`
	Elsewhere    uint64           `count:"elsewhere" prom:"offloads_total,result=elsewhere"`
	NotWorth     uint64           `count:"not_worth" prom:"offloads_total,result=not_worth"`
	NoRoom       uint64           `count:"no_room" prom:"offloads_total,result=no_room"`
	Chain        uint64           `count:"chain" prom:"offloads_total,result=chain"`
	Sending      uint64           `count:"sending" prom:"offloads_in_flight" help:"Copies being sent, or waiting to be."`
	SendingBytes uint64           `count:"sending_bytes" prom:"offload_bytes_in_flight" help:"Bytes of memory that they hold."`
}

// HBM counts events since Open, on one accelerator or on all together. All are zero without HBM.
type HBM struct {
	// Match for clients of the device: hits with copies in HBM for all ranks that have
	// engines. They do not count as hits in the lower tier.
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`

	// Copied and verified.
	PromotedBytes uint64 `count:"promoted_bytes" prom:"fetch_bytes_total,tier=hbm,direction=in"`
	// Copies that lookups no longer find, by reason.
	Dropped [hbmDropReasons]uint64 `count:"dropped_{room,quota,object,removed,lost}" prom:"evictions_total,tier=hbm,reason=room|quota|object|operator|lost"`
	// Bytes of these copies.
	DroppedBytes uint64     `count:"dropped_bytes" prom:"evicted_bytes_total,tier=hbm"`
	plan.Ran                // plans that ran in HBM
	Device       `prom:"-"` // reported to Prometheus per device
}

// Device is the part of HBM that Prometheus gets per device. Copies, Promoting and Lost
// are gauges.
type Device struct {
	// Counts of AcquireResident and LoadResident.
	Acquired       uint64 `count:"acquired" prom:"hbm_leases_total,kind=segment,result=hit" help:"Leases asked for on the GPU, by kind of object and result (hit or miss)."`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses" prom:"hbm_leases_total,kind=segment,result=miss"`
	Loaded         uint64 `count:"loaded" prom:"hbm_leases_total,kind=checkpoint,result=hit"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses" prom:"hbm_leases_total,kind=checkpoint,result=miss"`

	Copies         uint64                    `count:"copies" prom:"hbm_copies" help:"Copies of segments and checkpoints on the GPU that lookups find."`
	Promoting      uint64                    `count:"promoting" prom:"hbm_promotions_in_flight" help:"Copies to the GPU that are wanted or running."`
	Promotions     [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,,no_room,stopped,lost,failed}" prom:"hbm_promotions_total,result=*" help:"Copies to the GPU by outcome: done, corrupt (the device's digests are not the object's), gone (the object left memory meanwhile), no_room, stopped, lost (with the device), failed (refused by the device)."`
	PromotionsBusy uint64                    `count:"promotions_busy" prom:"hbm_promotions_refused_total" help:"Copies to the GPU not begun because too many were wanted."`
	MatchesDropped uint64                    `count:"matches_dropped" prom:"hbm_matches_dropped_total" help:"Hits of matches that were not considered for a copy: too many at once."`
	Lost           uint64                    `count:"lost" prom:"hbm_lost" help:"1 when the GPU was lost or could not be used; what it held is in memory or on disk."`
}

// Add adds the counts of another device.
func (c *HBM) Add(o *HBM) {
	for _, n := range [...]struct {
		to *uint64
		by uint64
	}{
		{&c.HitSegments, o.HitSegments}, {&c.HitTokens, o.HitTokens}, {&c.PrefixHits, o.PrefixHits}, {&c.PrefixHitTokens, o.PrefixHitTokens},
		{&c.PromotedBytes, o.PromotedBytes}, {&c.DroppedBytes, o.DroppedBytes},
		{&c.Composed, o.Composed}, {&c.Rotated, o.Rotated}, {&c.Assembled, o.Assembled}, {&c.Replayed, o.Replayed},
		{&c.Acquired, o.Acquired}, {&c.AcquiredTokens, o.AcquiredTokens}, {&c.AcquireMisses, o.AcquireMisses},
		{&c.Loaded, o.Loaded}, {&c.LoadedTokens, o.LoadedTokens}, {&c.LoadMisses, o.LoadMisses},
		{&c.Copies, o.Copies}, {&c.Promoting, o.Promoting}, {&c.PromotionsBusy, o.PromotionsBusy}, {&c.MatchesDropped, o.MatchesDropped},
		{&c.Lost, o.Lost},
	} {
		*n.to += n.by
	}
	for i, n := range o.Dropped {
		c.Dropped[i] += n
	}
	for i, n := range o.Promotions {
		c.Promotions[i] += n
	}
}

// Drop is why a copy was dropped from HBM. The copy was never the only one of its object.
type Drop uint8

const (
	DropRoom    Drop = iota // another copy, or a buffer, needed its room
	DropQuota               // its tenant is at its quota
	DropObject              // its object has left every other tier, or has other bytes now
	DropRemoved             // an operator removed its object
	DropLost                // the device was lost
	hbmDropReasons
)

func (d Drop) String() string {
	return [...]string{"room", "quota", "object", "removed", "lost"}[d]
}

// Cause is why a fill ended without publication.
type Cause uint8

const (
	CauseAbort   Cause = iota // its client aborted it
	CauseDeath                // one of its clients disconnected
	CauseCorrupt              // a digest did not match
	CauseDevice               // the device failed
	CauseExpiry
	Causes
)
