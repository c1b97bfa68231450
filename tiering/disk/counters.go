package disk

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Counters counts since Open, apart from the gauges at the end.
type Counters struct {
	// By writing.
	Admitted       uint64 // objects given room
	Joined         uint64 // of what was here, or on its way
	Written        uint64 // objects whose rows are logged
	WrittenBytes   uint64 // of their layouts
	StoredBytes    uint64 // given to the disk for them: headers, codecs and padding counted
	WriteErrors    uint64 // objects that could not be written
	WritesDropped  uint64 // objects that left before they were written
	Groups         uint64 // batches of rows
	GroupObjects   uint64 // entries written by them; over Groups, the mean size of a group
	Syncs          uint64 // of data and rows
	SyncErrors     uint64
	SyncedObjects  uint64 // entries that syncs raised
	CodedRawBytes  uint64 // of parts given to a codec
	CodedBytes     uint64 // what it made of them
	SlabsMade      uint64
	GrowthRefused  uint64 // by the file system, its reserve included
	RefusedBusy    uint64
	RefusedFull    uint64
	RefusedQuota   uint64
	RefusedState   uint64 // while writes were paused, or one hung
	RefusedInvalid uint64

	// By reading.
	Read            uint64 // objects
	ReadBytes       uint64 // of their layouts
	ReadNanos       uint64 // from beginning to end, of all of them
	Corrupt         uint64 // entries whose bytes were wrong
	ReadErrors      uint64 // reads that the disk failed, also in a second try
	ReadRetries     uint64
	ReadsRefused    uint64 // while too many in a row have failed, or one hung
	BreakerOpenings uint64

	// By leaving.
	EvictedRoom   uint64 // entries, for room in their pool
	EvictedQuota  uint64 // entries, for their tenant's quota
	EvictedBytes  uint64 // of both
	Removed       uint64 // by an operator
	LostWithOther uint64 // because the checkpoint they extend has left
	LostUnsynced  uint64 // because a sync after they were written failed

	// By opening.
	Opened  uint64 // entries found
	Dropped uint64 // rows that could not be kept

	// Now.
	Entries      uint64
	Bytes        uint64 // of admitted and live entries
	LeavingBytes uint64 // forgotten, whose space is not free yet
	QueueObjects uint64
	QueueBytes   uint64
	SlabBytes    uint64 // of slab files
	Logged       uint64 // entries that are not synced
}

// Counters takes a snapshot.
func (t *Tier) Counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counters
	c.Entries = uint64(t.pools[public].entries + t.pools[private].entries)
	c.Bytes = uint64(t.usedLocked())
	c.LeavingBytes = uint64(t.leaving)
	c.QueueObjects, c.QueueBytes = uint64(t.queued), uint64(t.queuedBytes)
	c.Logged = uint64(len(t.logged))
	if t.vol != nil {
		c.SlabBytes = uint64(t.vol.slabBytes.Load())
	}
	return c
}

// Each calls f with every counter and gauge in a fixed order, by the name it has
// in metrics.
func (c *Counters) Each(f func(name string, value uint64)) {
	for _, row := range [...]struct {
		name  string
		value uint64
	}{
		{"admitted", c.Admitted}, {"joined", c.Joined}, {"written", c.Written}, {"written_bytes", c.WrittenBytes},
		{"stored_bytes", c.StoredBytes}, {"write_errors", c.WriteErrors}, {"writes_dropped", c.WritesDropped},
		{"groups", c.Groups}, {"group_objects", c.GroupObjects}, {"syncs", c.Syncs}, {"sync_errors", c.SyncErrors},
		{"synced_objects", c.SyncedObjects}, {"coded_raw_bytes", c.CodedRawBytes}, {"coded_bytes", c.CodedBytes},
		{"slabs_made", c.SlabsMade}, {"growth_refused", c.GrowthRefused},
		{"refused_busy", c.RefusedBusy}, {"refused_full", c.RefusedFull}, {"refused_quota", c.RefusedQuota},
		{"refused_state", c.RefusedState}, {"refused_invalid", c.RefusedInvalid},
		{"read", c.Read}, {"read_bytes", c.ReadBytes}, {"read_nanos", c.ReadNanos}, {"corrupt", c.Corrupt},
		{"read_errors", c.ReadErrors}, {"read_retries", c.ReadRetries}, {"reads_refused", c.ReadsRefused},
		{"breaker_openings", c.BreakerOpenings},
		{"evicted_room", c.EvictedRoom}, {"evicted_quota", c.EvictedQuota}, {"evicted_bytes", c.EvictedBytes},
		{"removed", c.Removed}, {"lost_with_other", c.LostWithOther}, {"lost_unsynced", c.LostUnsynced}, {"opened", c.Opened}, {"dropped", c.Dropped},
		{"entries", c.Entries}, {"bytes", c.Bytes}, {"leaving_bytes", c.LeavingBytes},
		{"queue_objects", c.QueueObjects}, {"queue_bytes", c.QueueBytes}, {"slab_bytes", c.SlabBytes}, {"logged", c.Logged},
	} {
		f(row.name, row.value)
	}
}

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
