package disk

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Counters counts events since Open, except for the gauges at the end.
type Counters struct {
	// Writing.
	Admitted uint64 `count:"admitted" prom:"disk_admissions_total" help:"Objects accepted into the write queue of the disk tier."`
	// Objects offered that were already stored or being written.
	Joined  uint64 `count:"joined"`
	Written uint64 `count:"written" prom:"disk_written_total" help:"Objects whose data and catalogue row have been handed to the kernel."`
	// Bytes of these objects, before coding and without headers.
	WrittenBytes  uint64 `count:"written_bytes" prom:"fetch_bytes_total,tier=disk,direction=in"`
	StoredBytes   uint64 `count:"stored_bytes" prom:"disk_stored_bytes_total" help:"Bytes handed to the kernel for objects written to disk, after coding and with headers and padding."`
	WriteErrors   uint64 `count:"write_errors" prom:"disk_errors_total,operation=write" help:"Failed disk operations, by operation: write (accepted objects that could not be written), read (objects that could not be read, also on retry), sync (failed syncs of data or rows)."`
	WritesDropped uint64 `count:"writes_dropped" prom:"disk_writes_dropped_total" help:"Accepted writes that were abandoned, because the object was removed or the disk directory was closed before they ended."`
	Groups        uint64 `count:"groups" prom:"disk_groups_total" help:"Batches of added, updated and deleted rows written to the catalogue."`
	GroupObjects  uint64 `count:"group_objects" prom:"disk_grouped_objects_total" help:"Object rows added by the batches written to the catalogue."`
	Syncs         uint64 `count:"syncs" prom:"disk_syncs_total" help:"Completed syncs of data and catalogue rows to the disk."`
	SyncErrors    uint64 `count:"sync_errors" prom:"disk_errors_total,operation=sync"`
	SyncedObjects uint64 `count:"synced_objects" prom:"disk_synced_objects_total" help:"Objects that a completed sync has made safe from power loss."`
	CodedRawBytes uint64 `count:"coded_raw_bytes" prom:"disk_coded_raw_bytes_total" help:"Bytes given to the lossless codec, counting only the parts that it was able to shrink."`
	CodedBytes    uint64 `count:"coded_bytes" prom:"disk_coded_bytes_total" help:"Bytes that the lossless codec produced from the bytes in disk_coded_raw_bytes_total."`
	SlabsMade     uint64 `count:"slabs_made" prom:"disk_slabs_made_total" help:"Slab files created."`
	GrowthRefused uint64 `count:"growth_refused" prom:"disk_growth_refused_total" help:"Slab files not created, because the file system had no room or would have kept less than the configured reserve free."`
	RefusedBusy   uint64 `count:"refused_busy" prom:"disk_refusals_total,reason=busy" help:"Objects that the disk tier did not accept, by reason: busy (write queue full), full, quota (of the tenant), state (the tier does not write now, or a write hangs), invalid (for example, the checkpoint that it extends is not on disk)."`
	RefusedFull   uint64 `count:"refused_full" prom:"disk_refusals_total,reason=full"`
	RefusedQuota  uint64 `count:"refused_quota" prom:"disk_refusals_total,reason=quota"`
	// While writes were paused, or while a write hung.
	RefusedState   uint64 `count:"refused_state" prom:"disk_refusals_total,reason=state"`
	RefusedInvalid uint64 `count:"refused_invalid" prom:"disk_refusals_total,reason=invalid"`

	// Reading.
	Read uint64 `count:"read" prom:"disk_read_total" help:"Objects read from disk."`
	// Bytes of these objects, as delivered to memory.
	ReadBytes uint64 `count:"read_bytes" prom:"fetch_bytes_total,tier=disk,direction=out"`
	// Total time of all reads.
	ReadNanos uint64 `count:"read_nanos"`
	Corrupt   uint64 `count:"corrupt" prom:"corrupt_total,tier=disk" help:"Objects found corrupt in a tier. They are not served: on disk they are deleted, from another node or the object store they are not requested again for a while."`
	// Reads that the disk failed, in the second try too.
	ReadErrors      uint64 `count:"read_errors" prom:"disk_errors_total,operation=read"`
	ReadRetries     uint64 `count:"read_retries" prom:"disk_read_retries_total" help:"Failed disk reads that were retried."`
	ReadsRefused    uint64 `count:"reads_refused" prom:"disk_reads_refused_total" help:"Disk reads refused while the circuit breaker was open after repeated failures, or while another read hung."`
	BreakerOpenings uint64 `count:"breaker_openings" prom:"disk_breaker_openings_total" help:"Times that the circuit breaker of disk reads opened, because 8 reads in a row had failed. While it is open, disk reads are refused."`

	// Removal: entries evicted for room in their pool.
	EvictedRoom uint64 `count:"evicted_room" prom:"evictions_total,tier=disk,reason=room"`
	// Entries evicted for their tenant's quota.
	EvictedQuota uint64 `count:"evicted_quota" prom:"evictions_total,tier=disk,reason=quota"`
	// Bytes of both kinds of evicted entries.
	EvictedBytes uint64 `count:"evicted_bytes" prom:"evicted_bytes_total,tier=disk"`
	// Entries removed by an operator.
	Removed uint64 `count:"removed" prom:"evictions_total,tier=disk,reason=operator"`
	// Entries removed because their parent checkpoint was removed.
	LostWithOther uint64 `count:"lost_with_other" prom:"evictions_total,tier=disk,reason=parent"`
	// Entries forgotten because the sync after their write failed, or because they were
	// suspect and were stored again.
	LostUnsynced uint64 `count:"lost_unsynced"`

	// Opening.
	Opened  uint64 `count:"opened" prom:"disk_opened_total" help:"Objects found on disk when the disk directory was opened."`
	Dropped uint64 `count:"dropped" prom:"disk_open_dropped_total" help:"Objects on disk that were discarded, because their row or the file of their profile did not fit when the disk directory was opened."`

	// Gauges.
	Entries uint64 `count:"entries"`
	// Bytes of admitted and live entries.
	Bytes        uint64 `count:"bytes"`
	LeavingBytes uint64 `count:"leaving_bytes" prom:"disk_leaving_bytes" help:"Bytes of deleted objects whose space on disk cannot be reused yet."`
	QueueObjects uint64 `count:"queue_objects" prom:"disk_write_queue_objects" help:"Objects in the write queue of the disk tier, including those being written."`
	QueueBytes   uint64 `count:"queue_bytes" prom:"disk_write_queue_bytes" help:"Bytes of objects in the write queue of the disk tier, including those being written."`
	SlabBytes    uint64 `count:"slab_bytes" prom:"disk_slab_bytes" help:"Total size of the slab files, in bytes."`
	Dormant      uint64 `count:"dormant" prom:"disk_dormant_objects" help:"Objects kept on disk but not served, because the file of their profile cannot be read or is damaged. They are included in the objects and bytes of the disk tier."`
	Logged       uint64 `count:"logged" prom:"disk_unsynced_objects" help:"Objects on disk that are not synced yet, so a power loss may destroy them."`
}

// Counters returns a snapshot.
func (t *core) Counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counters
	c.Entries = uint64(t.pools[public].entries + t.pools[private].entries)
	c.Bytes = uint64(t.used())
	c.LeavingBytes = uint64(t.leaving)
	c.QueueObjects, c.QueueBytes = uint64(len(t.queue.all)), uint64(t.queue.bytes)
	c.Logged = uint64(len(t.logged))
	dormant, _ := t.dormantLocked()
	c.Dormant = uint64(dormant)
	if t.mount != nil {
		c.SlabBytes = uint64(t.mount.SlabBytes())
	}
	return c
}

// Each calls f with the name and value of every counter and gauge, in a fixed order.
func (c *Counters) Each(f func(name string, value uint64)) { metric.Each(c, f) }

func (c *Counters) refused(err error) {
	switch {
	case errors.Is(err, tier.ErrBusy):
		c.RefusedBusy++
	case errors.Is(err, tier.ErrFull):
		c.RefusedFull++
	case errors.Is(err, tier.ErrQuota):
		c.RefusedQuota++
	case errors.Is(err, tier.ErrInvalid):
		c.RefusedInvalid++
	default:
		c.RefusedState++
	}
}
