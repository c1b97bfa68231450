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
	HitSegmentsVariant uint64               `count:"hit_segments_variant" prom:"variant_hits_total" help:"Segment hits in which only the other variant of the segment was cached: captured after a primer although the variant without one was preferred, or the reverse. Such a segment is reused at lower quality."`
	MissSegments       [tier.Reasons]uint64 `count:"miss_segments_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"misses_total,reason=*" help:"Segment keys in match requests that missed, by reason: unknown (never cached, or too long ago), evicted, pending (still being filled), removed (by an operator), refused (no room or quota), aborted (its writer failed)."`
	MissTokens         [tier.Reasons]uint64 `count:"miss_tokens_{,unknown,evicted,pending,removed,refused,aborted,}" prom:"miss_tokens_total,reason=*" help:"Tokens of segment keys that missed in match requests, by reason as in misses_total. A key that was never cached has an unknown length and counts as 0 tokens; for the tokens that requests had to compute, see served_missed_tokens_total."`
	PrefixHits         uint64               `count:"prefix_hits"`
	PrefixHitTokens    uint64               `count:"prefix_hit_tokens"`
	PrefixMisses       [tier.Reasons]uint64 `count:"prefix_misses_{,unknown,evicted,pending,removed,refused,aborted,flag_only}" prom:"prefix_misses_total,reason=*" help:"Match requests that found no checkpoint of the prompt's prefixes, by reason: unknown (never cached, or too long ago), evicted, pending (still being filled), removed (by an operator), refused (no room or quota), aborted (its writer failed), flag_only (only of a kind that the request does not accept)."`
	// Hits in the lower tier.
	HitSegmentsDisk     uint64 `count:"hit_segments_disk"`
	HitTokensDisk       uint64 `count:"hit_tokens_disk"`
	PrefixHitsDisk      uint64 `count:"prefix_hits_disk"`
	PrefixHitTokensDisk uint64 `count:"prefix_hit_tokens_disk"`
	// Prompts searched by Known. Its results also count among the hits above.
	KnownSearches uint64 `count:"known_searches" prom:"known_searches_total" help:"Prompts in which the daemon searched for cached segments by token content instead of by key."`
	KnownSegments uint64 `count:"known_segments" prom:"known_segments_total" help:"Cached segments found in prompts by their tokens."`
	KnownTokens   uint64 `count:"known_tokens" prom:"known_tokens_total" help:"Tokens of the cached segments found in prompts by token content, without the tokens of their seams."`
	// Segments that the search found, but whose key was not a hit.
	KnownGone uint64 `count:"known_gone"`
	// Tokens at which the search did not try all lengths.
	KnownUntried uint64 `count:"known_untried" prom:"known_untried_total" help:"Tokens of searched prompts at which the search did not try every segment length, because too many cached segments begin alike."`

	// Acquire and Load.
	Acquired       uint64 `count:"acquired"`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses"`
	// All-or-none queries that were refused for lack of room.
	AcquireRefused uint64 `count:"acquire_refused"`
	Loaded         uint64 `count:"loaded"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses"`
	Leases         uint64 `count:"leases" prom:"leases" help:"Active leases on segments and checkpoints."`
	Quarantined    uint64 `count:"leases_quarantined" prom:"leases_quarantined" help:"Expired leases whose memory stays allocated, because the client that held the lease may still be reading it."`
	LeasesExpired  uint64 `count:"leases_expired" prom:"lease_expired_total" help:"Leases that expired before the client released them, by timeout or because the client's connection was lost."`

	// Fills: objects whose fill began.
	Reserved uint64 `count:"reserved"`
	// Reservations refused because the share is stored or being filled already.
	Exists uint64 `count:"reserve_exists"`
	// Bytes of the shares of these reservations.
	ExistsBytes     uint64         `count:"reserve_exists_bytes" prom:"dedup_saved_bytes_total" help:"Bytes that were neither sent nor stored a second time: sizes of the tensor-parallel shares whose reservation was refused because the same share was already stored or being filled."`
	CommittedChunks uint64         `count:"committed_chunks"`
	CommittedBytes  uint64         `count:"committed_bytes" prom:"fetch_bytes_total,tier=dram,direction=in" help:"Bytes moved into a tier (direction in) or out of it (direction out). Into dram they come from clients, into hbm, disk and object from memory; for peer, in is received from other cluster members and out is sent to them."`
	Published       uint64         `count:"published" prom:"published_total" help:"Objects (segments and checkpoints) completely filled by clients and made visible to lookups."`
	Packed          uint64         `count:"packed" prom:"packed_total" help:"Segments stored in a smaller lossy form before publication, within the error tolerance of their profile."`
	PackedAwayBytes uint64         `count:"packed_away_bytes" prom:"packed_away_bytes_total" help:"Bytes by which packing made published segments smaller."`
	PackNanos       uint64         `count:"pack_nanos"`
	PublishedBytes  uint64         `count:"published_bytes" prom:"published_bytes_total" help:"Bytes of published objects, summed over all tensor-parallel ranks."`
	Aborted         [Causes]uint64 `count:"aborted_{client,death,corrupt,device,expiry}" prom:"aborted_total,reason=*" help:"Fills that ended without publication, by reason: client (aborted by its client), death (a client disconnected), corrupt (a digest did not match), device (the memory device failed), expiry (not completed in time)."`

	RefusedFull  uint64 `count:"refused_full" prom:"admissions_refused_total,reason=full" help:"Requests for memory that were refused, by reason: full (everything in the pool is in use), quota (of the tenant), busy (memory is still being freed, or the connection has too many leases or reservations)."`
	RefusedQuota uint64 `count:"refused_quota" prom:"admissions_refused_total,reason=quota"`
	RefusedBusy  uint64 `count:"refused_busy" prom:"admissions_refused_total,reason=busy"`

	// Evictions from memory: EvictedRoom + EvictedQuota = Demoted + DemotionsRefused +
	// DemotionsFailed + Dropped + those still being written.
	EvictedRoom uint64 `count:"evicted_room" prom:"evictions_total,tier=dram,reason=room" help:"Objects that left a tier, by reason: room, quota (of the tenant), operator, parent (disk: the checkpoint that it extends was removed), age (object store: past its lifetime), object (GPU copy: its object left the node or changed), lost (GPU failed). Most objects evicted from memory are still on disk: see demotions_total."`
	// Objects evicted for their tenant's quota.
	EvictedQuota uint64 `count:"evicted_quota" prom:"evictions_total,tier=dram,reason=quota"`
	EvictedBytes uint64 `count:"evicted_bytes" prom:"evicted_bytes_total,tier=dram" help:"Bytes of objects evicted from a tier."`
	Demoted      uint64 `count:"demoted" prom:"demotions_total,result=taken" help:"Objects evicted from memory, by whether the disk tier keeps them: taken (on disk), refused (the disk tier did not accept the write), failed (the write failed), dropped (not offered to the disk: evicted for a quota, or another node is believed to have it)." part:"disk"`
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
	Written         uint64                       `count:"written" prom:"tier_written_total,tier=disk" help:"Objects written from memory to a lower tier." part:"disk"`
	WrittenBytes    uint64                       `count:"written_bytes"`
	Writing         uint64                       `count:"writing" prom:"tier_writing,tier=disk" help:"Objects being written to a lower tier now." part:"disk"`
	WritesFailed    uint64                       `count:"writes_failed" prom:"tier_writes_failed_total,tier=disk" help:"Writes that a lower tier accepted and that then failed." part:"disk"`
	WritesRefused   [refusals]uint64             `count:"writes_refused_{busy,full,quota,unavailable,other}" prom:"tier_writes_refused_total,tier=disk,reason=*" help:"Writes that a lower tier did not accept, by reason: busy (write queue full), full, quota, unavailable (the tier accepts no writes now), other. Writes that wait for a busy tier are not counted." part:"disk"`
	Cleaned         uint64                       `count:"cleaned" prom:"cleaned_total" help:"Writes to disk that were started ahead of eviction because a memory pool was short of free bytes." part:"disk"`
	CorruptInMemory uint64                       `count:"spoilt_in_memory" prom:"spoilt_in_memory_total" help:"Objects removed because their bytes in memory no longer matched the published digests, as found when they were copied to disk, to a GPU, to the object store or to another node." part:"disk"`
	TrimmedBytes    uint64                       `count:"trimmed_bytes" prom:"tier_trimmed_bytes_total,tier=disk" help:"Bytes evicted from a lower tier to keep tenants within their quotas." part:"disk"`
	Acknowledged    [tier.LevelSynced + 1]uint64 `count:"acknowledged_{,memory,logged,synced}" prom:"acknowledged_total,level=*" help:"Publications for which the client asked for a durable write, by the level reached at the acknowledgement: memory (not durable), logged (survives a crash of the daemon), synced (survives power loss)." part:"disk"`

	// Reads from the lower tier.
	Promotions     [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,unavailable,no_room,stopped,,}" prom:"promotions_total,result=*" help:"Reads of objects from disk into memory, by outcome: done, corrupt, gone (evicted or changed meanwhile), unavailable (the disk tier cannot read now), no_room (in memory or in the tenant's quota), stopped (canceled or timed out)." part:"disk"`
	PromotedBytes  uint64                    `count:"promoted_bytes" prom:"promoted_bytes_total" help:"Bytes of objects read from disk into memory." part:"disk"`
	Promoting      uint64                    `count:"promoting" prom:"promotions_in_flight" help:"Reads of objects from disk into memory that are queued or running." part:"disk"`
	PromotionsBusy uint64                    `count:"promotions_busy" prom:"promotions_refused_total" help:"Reads from disk or from other nodes that were not started because too many were queued or running." part:"disk"`
	// ReadAheadBegun = ReadAheadUsed + ReadAheadWasted + ReadAheadFailed + the objects in
	// memory or in flight that are not used yet.
	ReadAheadBegun uint64 `count:"read_ahead_begun" prom:"read_ahead_total,result=begun" help:"Objects read into memory because a match request named them, before any client asked for a lease: begun, of these used (a client leased or waited for the object), wasted (evicted or timed out unused) and failed; dropped (not begun, because a limit was reached)." part:"disk"`
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

// Beyond counts events that concern objects outside the node, since Open. The fields Finding and
// Fetching are gauges. All counts are zero without a Remote.
type Beyond struct {
	// Match: hits that are believed to be outside the node. Their tokens are counted if known.
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`

	Finds     [transfer.Outcomes]uint64 `count:"finds_{done,,,unavailable,busy,stopped,,}" prom:"peer_finds_total,result=*" help:"Searches of other cluster members and the object store for objects missing on this node, by outcome: done (answered), unavailable (nobody answered in time), busy (too many requests), stopped (canceled)."`
	FindsBusy uint64                    `count:"finds_refused" prom:"peer_finds_refused_total" help:"Searches of other cluster members and the object store that were not started because too many were queued or running."`
	Finding   uint64                    `count:"finding" prom:"peer_finds_in_flight" help:"Searches of other cluster members and the object store that are queued or running."`
	// Objects that no source had although there was a hint.
	FindMisses uint64 `count:"find_misses" prom:"peer_find_misses_total,reason=absent" help:"Objects that another node or the object store was believed to have, but that could not be fetched, by reason: absent (nobody has it, or has what it extends), wrong (the description received is invalid)."`
	FindsWrong uint64 `count:"find_wrong" prom:"peer_find_misses_total,reason=wrong"`
	NotWorth   uint64 `count:"not_worth" prom:"peer_not_worth_total" help:"Objects not fetched from another node or the object store, because computing their tokens is estimated to be faster."`

	Fetches      [transfer.Outcomes]uint64 `count:"fetches_{done,corrupt,gone,unavailable,no_room,stopped,,}" prom:"peer_fetches_total,result=*" help:"Fetches of objects from other nodes and the object store into memory, by outcome: done, corrupt, gone (the source no longer has it), unavailable (the source cannot send now), no_room (in memory or in the tenant's quota), stopped (canceled or timed out)."`
	FetchedBytes uint64                    `count:"fetched_bytes" prom:"peer_fetched_bytes_total" help:"Bytes of objects fetched from other nodes and the object store into memory."`
	Fetching     uint64                    `count:"fetching" prom:"peer_fetches_in_flight" help:"Fetches from other nodes and the object store that are queued or running."`
}

// ObjectHits counts hits of Match in a store shared by nodes.
type ObjectHits struct {
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`
}

// Offload counts copies sent to other nodes, or to a store shared by nodes, since Open. The
// fields Sending and SendingBytes are gauges. Invariant: Offered = Sent + Failed + sum of
// Refused + Sending.
type Offload struct {
	Offered      uint64           `count:"offered" prom:"offloads_total,result=offered" help:"Copies of objects for the object store or another node. Offered ones end as sent, failed, or refused (offloads_refused_total); not offered are elsewhere (others are believed to have it), not_worth (computing is faster than fetching it back), no_room (too many copies in flight) and chain (the checkpoint that it extends cannot be sent)."`
	Sent         uint64           `count:"sent" prom:"offloads_total,result=sent"`
	SentBytes    uint64           `count:"sent_bytes" prom:"offloaded_bytes_total" help:"Bytes of objects copied to the object store or to another node."`
	Failed       uint64           `count:"failed" prom:"offloads_total,result=failed"`
	Refused      [refusals]uint64 `count:"refused_{busy,full,quota,unavailable,other}" prom:"offloads_refused_total,reason=*" help:"Copies that neither the object store nor another node accepted, by the reason of the last refusal: busy (queue full), full, quota, unavailable (no destination accepts copies now), other."`
	Elsewhere    uint64           `count:"elsewhere" prom:"offloads_total,result=elsewhere"`
	NotWorth     uint64           `count:"not_worth" prom:"offloads_total,result=not_worth"`
	NoRoom       uint64           `count:"no_room" prom:"offloads_total,result=no_room"`
	Chain        uint64           `count:"chain" prom:"offloads_total,result=chain"`
	Sending      uint64           `count:"sending" prom:"offloads_in_flight" help:"Copies to the object store or to another node that are queued or being sent."`
	SendingBytes uint64           `count:"sending_bytes" prom:"offload_bytes_in_flight" help:"Bytes of memory occupied by objects whose copies are queued or being sent to the object store or to another node."`
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

// Device is the part of HBM that Prometheus gets per device. The fields Copies, Promoting and
// Lost are gauges.
type Device struct {
	// Counts of AcquireResident and LoadResident.
	Acquired       uint64 `count:"acquired" prom:"hbm_leases_total,kind=segment,result=hit" help:"Leases requested on copies in GPU memory, by kind of object (segment or checkpoint) and result (hit or miss)."`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses" prom:"hbm_leases_total,kind=segment,result=miss"`
	Loaded         uint64 `count:"loaded" prom:"hbm_leases_total,kind=checkpoint,result=hit"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses" prom:"hbm_leases_total,kind=checkpoint,result=miss"`

	Copies         uint64                    `count:"copies" prom:"hbm_copies" help:"Copies of segments and checkpoints in GPU memory that lookups find."`
	Promoting      uint64                    `count:"promoting" prom:"hbm_promotions_in_flight" help:"Copies from memory to the GPU that are queued or running."`
	Promotions     [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,,no_room,stopped,lost,failed}" prom:"hbm_promotions_total,result=*" help:"Copies from memory to the GPU, by outcome: done, corrupt (the digests on the GPU differ from the object's), gone (the object left memory meanwhile), no_room, stopped (canceled), lost (the GPU failed), failed (the GPU returned an error)."`
	PromotionsBusy uint64                    `count:"promotions_busy" prom:"hbm_promotions_refused_total" help:"Copies from memory to the GPU that were not started because too many were queued or running."`
	MatchesDropped uint64                    `count:"matches_dropped" prom:"hbm_matches_dropped_total" help:"Match hits that did not trigger a copy to the GPU, because too many hits were waiting to be considered."`
	Lost           uint64                    `count:"lost" prom:"hbm_lost" help:"1 if the GPU failed or could not be used, otherwise 0. The objects that it held are still in memory or on disk."`
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
