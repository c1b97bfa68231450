package view

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var (
	diskState     = describe("disk_state", "1 for the state that the disk tier is in, 0 for the others. full: old entries make room for new ones; paused, failed: nothing is written; opening, missing, refused, locked, version, unreadable: nothing is read either.", "state")
	diskReads     = describe("disk_reads_tried", "1 while what is on disk is read, 0 while it counts as a miss: not open, too many reads in a row have failed, or one hangs.")
	diskStalled   = describe("disk_stalled_seconds", "How long the oldest operation under way has not returned, by what it does: read, write (syncs and rows too). 0 below 5 seconds. While reads hang what is on disk is a miss, while writes do nothing new is taken.", "operation")
	diskAdmitted  = describe("disk_admissions_total", "Objects given room on disk.")
	diskRefused   = describe("disk_refusals_total", "Objects that the disk tier did not take, by reason: busy (the write queue is full), full, quota, state (it does not write now, or hangs), invalid (its parent is not there).", "reason")
	diskWritten   = describe("disk_written_total", "Objects whose data and row were handed to the kernel.")
	diskStored    = describe("disk_stored_bytes_total", "Bytes given to the disk for them: headers, codecs and padding counted.")
	diskFailures  = describe("disk_errors_total", "What the disk failed, by what was tried: write (objects not written), read (objects not read, also in a second try), sync.", "operation")
	diskRetries   = describe("disk_read_retries_total", "Reads tried a second time.")
	diskPutOff    = describe("disk_reads_refused_total", "Reads refused because too many in a row had failed, or one hung.")
	diskBreaker   = describe("disk_breaker_openings_total", "How often too many reads in a row have failed.")
	diskDropped   = describe("disk_writes_dropped_total", "Objects that left before they were written.")
	diskRead      = describe("disk_read_total", "Objects read from disk.")
	diskReadTime  = describe("disk_read_seconds_total", "Time that reads took, of all of them.")
	diskSyncs     = describe("disk_syncs_total", "Syncs of data and rows.")
	diskSynced    = describe("disk_synced_objects_total", "Objects that syncs have made safe from power loss.")
	diskUnsynced  = describe("disk_unsynced_objects", "Objects on disk that power loss may take.")
	diskGroups    = describe("disk_groups_total", "Batches of rows written to the catalogue.")
	diskGrouped   = describe("disk_grouped_objects_total", "Objects in them.")
	diskCodedFrom = describe("disk_coded_raw_bytes_total", "Bytes given to the codec.")
	diskCodedTo   = describe("disk_coded_bytes_total", "What it made of them.")
	diskQueue     = describe("disk_write_queue_bytes", "Bytes of objects that wait to be written, or are being.")
	diskQueueLen  = describe("disk_write_queue_objects", "Objects that wait to be written, or are being.")
	diskSlabs     = describe("disk_slab_bytes", "Size of the slab files.")
	diskGrown     = describe("disk_slabs_made_total", "Slab files made.")
	diskNotGrown  = describe("disk_growth_refused_total", "Slab files that the file system, or the reserve to be kept free in it, did not allow.")
	diskLeaving   = describe("disk_leaving_bytes", "Bytes of entries that are forgotten and whose space is not free yet.")
	diskOpened    = describe("disk_opened_total", "Entries found when the directory was opened.")
	diskNotOpened = describe("disk_open_dropped_total", "Entries that could not be kept when the directory was opened.")

	written         = describe("tier_written_total", "Objects that a tier came to hold, from the one above.", "tier")
	writing         = describe("tier_writing", "Objects being written to a tier now.", "tier")
	writesRefused   = describe("tier_writes_refused_total", "Writes that a tier did not take, by reason. Busy ones are tried again.", "tier", "reason")
	writesFailed    = describe("tier_writes_failed_total", "Writes that a tier took and did not end well.", "tier")
	cleaned         = describe("cleaned_total", "Writes begun because memory filled up.")
	demotions       = describe("demotions_total", "Objects that left memory, by what became of them below: taken (the disk holds them), refused, failed, dropped (not offered). All but taken are lost.", "result")
	spoilt          = describe("spoilt_in_memory_total", "Objects not written because their bytes in memory were not those published.")
	trimmed         = describe("tier_trimmed_bytes_total", "Bytes given up in a tier for a tenant's quota.", "tier")
	acknowledged    = describe("acknowledged_total", "Publications that asked for more than memory, by the level reached when they were acknowledged.", "level")
	promotions      = describe("promotions_total", "Objects read into memory, by outcome: done, corrupt, gone (left meanwhile), unavailable (the disk does not read now), no_room (in memory), stopped.", "result")
	promotedBytes   = describe("promoted_bytes_total", "Bytes of objects read into memory.")
	promotingNow    = describe("promotions_in_flight", "Objects being read into memory, or waiting to be.")
	promotionsBusy  = describe("promotions_refused_total", "Promotions not begun because too many were under way.")
	readAhead       = describe("read_ahead_total", "Objects read because a match named them, by what became of that: begun, used (a client took a lease), wasted (left memory unused), failed, dropped (not begun: over a bound).", "result")
	dirtyBytes      = describe("pool_dirty_bytes", "Bytes in memory that could leave but for a write to disk first.", "tier", "pool")
	readAheadBytes  = describe("pool_read_ahead_bytes", "Bytes read ahead, or on the way, and not used yet.", "tier", "pool")
	requestsWaiting = describe("requests_waiting", "Requests that wait for a disk, on no worker.")

	corrupt = describe("corrupt_total", "Objects whose bytes in a tier turned out wrong: forgotten, and a miss.", "tier")
)

// disk tells how the disk tier does, and what the store does with it.
func (v *View) diskMetrics(s sink, stored *tiering.Counters) {
	if v.o.Disk == nil {
		return
	}
	moveMetrics(s, stored)
	u := v.o.Disk.Usage()
	for i := range u.Pools {
		p := &u.Pools[i]
		s.gauge(tierCapacity, float64(p.BudgetBytes), "disk", p.Name)
		s.gauge(tierUsed, float64(p.UsedBytes), "disk", p.Name, "evictable")
		s.gauge(poolObjects, float64(p.Entries), "disk", p.Name)
	}
	health := v.o.Disk.Health()
	disk.States(func(state disk.State) { s.gauge(diskState, one(state == health.State), state.String()) })
	s.gauge(diskReads, one(health.Reads))
	s.gauge(diskStalled, health.ReadStalled.Seconds(), "read")
	s.gauge(diskStalled, health.WriteStalled.Seconds(), "write")
	c := v.o.Disk.Counters()
	diskWriteMetrics(s, &c)
	diskReadMetrics(s, &c)
	s.count(evictions, c.EvictedRoom, "disk", "room")
	s.count(evictions, c.EvictedQuota, "disk", "quota")
	s.count(evictions, c.Removed, "disk", "operator")
	s.count(evictions, c.LostWithOther, "disk", "parent")
	s.count(evictedBytes, c.EvictedBytes, "disk")
	s.gauge(diskSlabs, float64(c.SlabBytes))
	s.gauge(diskLeaving, float64(c.LeavingBytes))
	s.count(diskGrown, c.SlabsMade)
	s.count(diskNotGrown, c.GrowthRefused)
	s.count(diskOpened, c.Opened)
	s.count(diskNotOpened, c.Dropped)
}

// moveMetrics tells what went from one tier to the other.
func moveMetrics(s sink, c *tiering.Counters) {
	s.count(written, c.Written, "disk")
	s.gauge(writing, float64(c.Writing), "disk")
	for i, reason := range [...]string{"busy", "full", "quota", "unavailable", "other"} {
		s.count(writesRefused, c.WritesRefused[i], "disk", reason)
	}
	s.count(writesFailed, c.WritesFailed, "disk")
	s.count(cleaned, c.Cleaned)
	s.count(demotions, c.Demoted, "taken")
	s.count(demotions, c.DemotionsRefused, "refused")
	s.count(demotions, c.DemotionsFailed, "failed")
	s.count(demotions, c.Dropped, "dropped")
	s.count(spoilt, c.SpoiltInMemory)
	s.count(trimmed, c.TrimmedBytes, "disk")
	for level := tier.LevelMemory; level <= tier.LevelSynced; level++ {
		s.count(acknowledged, c.Acknowledged[level], level.String())
	}
	for i, outcome := range [...]string{"done", "corrupt", "gone", "unavailable", "no_room", "stopped"} {
		s.count(promotions, c.Promotions[i], outcome)
	}
	s.count(promotedBytes, c.PromotedBytes)
	s.gauge(promotingNow, float64(c.Promoting))
	s.count(promotionsBusy, c.PromotionsBusy)
	s.count(readAhead, c.ReadAheadBegun, "begun")
	s.count(readAhead, c.ReadAheadUsed, "used")
	s.count(readAhead, c.ReadAheadWasted, "wasted")
	s.count(readAhead, c.ReadAheadFailed, "failed")
	s.count(readAhead, c.ReadAheadDropped, "dropped")
}

func diskWriteMetrics(s sink, c *disk.Counters) {
	s.count(diskAdmitted, c.Admitted)
	s.count(diskRefused, c.RefusedBusy, "busy")
	s.count(diskRefused, c.RefusedFull, "full")
	s.count(diskRefused, c.RefusedQuota, "quota")
	s.count(diskRefused, c.RefusedState, "state")
	s.count(diskRefused, c.RefusedInvalid, "invalid")
	s.count(diskWritten, c.Written)
	s.count(diskDropped, c.WritesDropped)
	s.count(committedBytes, c.WrittenBytes, "disk", "in")
	s.count(diskStored, c.StoredBytes)
	s.count(diskFailures, c.WriteErrors, "write")
	s.count(diskFailures, c.SyncErrors, "sync")
	s.count(diskSyncs, c.Syncs)
	s.count(diskSynced, c.SyncedObjects)
	s.gauge(diskUnsynced, float64(c.Logged))
	s.count(diskGroups, c.Groups)
	s.count(diskGrouped, c.GroupObjects)
	s.count(diskCodedFrom, c.CodedRawBytes)
	s.count(diskCodedTo, c.CodedBytes)
	s.gauge(diskQueue, float64(c.QueueBytes))
	s.gauge(diskQueueLen, float64(c.QueueObjects))
}

func diskReadMetrics(s sink, c *disk.Counters) {
	s.count(diskRead, c.Read)
	s.count(committedBytes, c.ReadBytes, "disk", "out")
	s <- prometheus.MustNewConstMetric(diskReadTime, prometheus.CounterValue, float64(c.ReadNanos)/1e9)
	s.count(corrupt, c.Corrupt, "disk")
	s.count(diskFailures, c.ReadErrors, "read")
	s.count(diskRetries, c.ReadRetries)
	s.count(diskPutOff, c.ReadsRefused)
	s.count(diskBreaker, c.BreakerOpenings)
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
