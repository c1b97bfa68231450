package view

import (
	"github.com/spliced-kv/spliced/tiering"
)

var (
	hbmInfo       = describe("hbm_info", "The GPU whose memory is lent.", "uuid", "name")
	hbmCopies     = describe("hbm_copies", "Copies of segments and checkpoints on the GPU that lookups find.")
	hbmPromotions = describe("hbm_promotions_total", "Copies to the GPU by outcome: done, corrupt (the device's digests are not the object's), gone (the object left memory meanwhile), no_room, stopped, lost (with the device), failed (refused by the device).", "result")
	hbmPromoting  = describe("hbm_promotions_in_flight", "Copies to the GPU that are wanted or running.")
	hbmBusy       = describe("hbm_promotions_refused_total", "Copies to the GPU not begun because too many were wanted.")
	hbmGuesses    = describe("hbm_matches_dropped_total", "Hits of matches that were not considered for a copy: too many at once.")
	hbmLeases     = describe("hbm_leases_total", "Leases asked for on the GPU, by kind of object and result (hit or miss).", "kind", "result")
	hbmLost       = describe("hbm_lost", "1 when the GPU was lost; what it held is in memory or on disk.")
	hbmLent       = describe("hbm_connection_bytes", "Memory of the GPU that clients have of their own.")
	hbmStuck      = describe("hbm_stuck_calls", "Calls of the driver on memory of other processes that run past their time now.")
	hbmLate       = describe("hbm_late_calls_total", "Calls of the driver on memory of other processes that ever ran past their time.")
	hbmGathered   = describe("hbm_gathered_total", "Operands of kernels that lay in several runs and were put together first.")
	hbmStaged     = describe("hbm_unpinned_bytes_total", "Bytes of the host's memory copied by way of staging, because the driver did not register them.")
)

// hbm tells how the GPU does and what is copied there.
func (v *View) hbmMetrics(s sink, c *tiering.Counters) {
	g := v.o.GPU
	if g == nil {
		return
	}
	h := &c.HBM
	s.gauge(hbmInfo, 1, g.Device.UUID().String(), g.Device.Describe().Name)
	s.gauge(hbmCopies, float64(h.Copies))
	for i, outcome := range [...]string{"done", "corrupt", "gone", "no_room", "stopped", "lost", "failed"} {
		s.count(hbmPromotions, h.Promotions[i], outcome)
	}
	s.count(committedBytes, h.PromotedBytes, "hbm", "in")
	s.gauge(hbmPromoting, float64(h.Promoting))
	s.count(hbmBusy, h.PromotionsBusy)
	s.count(hbmGuesses, h.MatchesDropped)
	for i, reason := range [...]string{"room", "quota", "object", "operator", "lost"} {
		s.count(evictions, h.Dropped[i], "hbm", reason)
	}
	s.count(evictedBytes, h.DroppedBytes, "hbm")
	s.count(hbmLeases, h.Acquired, "segment", "hit")
	s.count(hbmLeases, h.AcquireMisses, "segment", "miss")
	s.count(hbmLeases, h.Loaded, "checkpoint", "hit")
	s.count(hbmLeases, h.LoadMisses, "checkpoint", "miss")
	s.count(kernelRuns, h.Composed, "compose", "hbm")
	s.count(kernelRuns, h.Rotated, "rotate", "hbm")
	s.count(kernelRuns, h.Assembled, "assemble", "hbm")
	s.count(kernelRuns, h.Replayed, "replay", "hbm")
	s.gauge(hbmLost, float64(h.Lost))
	s.gauge(hbmLent, float64(g.LentBytes()))
	if n, ok := g.Counters(); ok {
		s.gauge(hbmStuck, float64(n.StuckCalls))
		s.count(hbmLate, uint64(n.LateCalls))
		s.count(hbmGathered, uint64(n.Gathered))
		s.count(hbmStaged, uint64(n.Unpinned))
	}
}
