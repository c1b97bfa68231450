package tiering

import (
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// HBMCounters counts what happens in HBM since Open, apart from the gauges Copies,
// Promoting and Lost. All are zero without HBM.
type HBMCounters struct {
	// By Match for clients of the device: of its hits, those with a copy in HBM for
	// some rank. They are not among those in the lower tier.
	HitSegments     uint64 `count:"hit_segments"`
	HitTokens       uint64 `count:"hit_tokens"`
	PrefixHits      uint64 `count:"prefix_hits"`
	PrefixHitTokens uint64 `count:"prefix_hit_tokens"`

	// By AcquireResident and LoadResident.
	Acquired       uint64 `count:"acquired" prom:"hbm_leases_total,kind=segment,result=hit" help:"Leases asked for on the GPU, by kind of object and result (hit or miss)."`
	AcquiredTokens uint64 `count:"acquired_tokens"`
	AcquireMisses  uint64 `count:"acquire_misses" prom:"hbm_leases_total,kind=segment,result=miss"`
	Loaded         uint64 `count:"loaded" prom:"hbm_leases_total,kind=checkpoint,result=hit"`
	LoadedTokens   uint64 `count:"loaded_tokens"`
	LoadMisses     uint64 `count:"load_misses" prom:"hbm_leases_total,kind=checkpoint,result=miss"`

	Copies     uint64                    `count:"copies" prom:"hbm_copies" help:"Copies of segments and checkpoints on the GPU that lookups find."`
	Promoting  uint64                    `count:"promoting" prom:"hbm_promotions_in_flight" help:"Copies to the GPU that are wanted or running."`
	Promotions [transfer.Outcomes]uint64 `count:"promotions_{done,corrupt,gone,,no_room,stopped,lost,failed}" prom:"hbm_promotions_total,result=*" help:"Copies to the GPU by outcome: done, corrupt (the device's digests are not the object's), gone (the object left memory meanwhile), no_room, stopped, lost (with the device), failed (refused by the device)."`
	// Copied and verified.
	PromotedBytes  uint64 `count:"promoted_bytes" prom:"fetch_bytes_total,tier=hbm,direction=in"`
	PromotionsBusy uint64 `count:"promotions_busy" prom:"hbm_promotions_refused_total" help:"Copies to the GPU not begun because too many were wanted."`
	MatchesDropped uint64 `count:"matches_dropped" prom:"hbm_matches_dropped_total" help:"Hits of matches that were not considered for a copy: too many at once."`
	// Copies that lookups do not find any more, by why.
	Dropped [hbmDropReasons]uint64 `count:"dropped_{room,quota,object,removed,lost}" prom:"evictions_total,tier=hbm,reason=room|quota|object|operator|lost"`
	// Of these.
	DroppedBytes uint64 `count:"dropped_bytes" prom:"evicted_bytes_total,tier=hbm"`
	plan.Ran            // in HBM
	Lost         uint64 `count:"lost" prom:"hbm_lost" help:"1 when the GPU was lost; what it held is in memory or on disk."`
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
