package daemon

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openDisk creates the configured disk tier. It does not access the directory yet: a
// hanging file system must not delay the start.
func (d *Daemon) openDisk() (err error) {
	if d.config.Disk == "" {
		return nil
	}
	d.segments = &find.Index{}
	d.disk, err = disk.Open(d.diskConfig())
	return err
}

// diskEviction is the name, as in the settings, of the disk's eviction policy.
const diskEviction = "lru"

func (d *Daemon) diskConfig() disk.Config {
	c := &d.config
	config := disk.Config{
		Dir: c.Disk, Existing: !c.DiskCreate, PublicBytes: int64(c.DiskSize), PrivateBytes: int64(c.DiskPrivate), SlabBytes: int64(c.DiskSlab),
		GranuleBytes: int64(c.DiskGranule), ReserveBytes: int64(c.DiskReserve), Device: d.device, Coded: codedParts[c.DiskCodec],
		Workers: c.DiskWorkers, QueueBytes: int64(c.DiskQueue), SyncEvery: c.DiskSyncEvery,
		DrainTime: max(c.DrainTimeout, time.Millisecond), OpenLater: true,
		Eviction: evictionOf(diskEviction), Now: d.now, Log: d.log, Find: d.segments, Held: d.held, Changed: d.diskChanged,
		Profile: func(fp profile.Fingerprint) *profile.Profile { return d.store.RegisteredProfile(fp) },
		Evicted: func(e *tier.Entry, model string, quota bool) { d.store.EvictedBelow(e, model, quota) },
	}
	// The disk identifies tenants by name: their ids follow the order of the configuration, which may
	// change.
	for _, t := range d.tenants {
		config.Tenants = append(config.Tenants, disk.Tenant{ID: t.ID, Name: t.Name})
	}
	return config
}

var codedParts = map[string][]profile.PartKind{
	"kv":  {profile.PartK, profile.PartV},
	"all": {profile.PartT, profile.PartS, profile.PartConv, profile.PartK, profile.PartV},
}

// levels maps the names in the configuration to acknowledgement levels.
var levels = map[string]tier.Level{
	"memory": tier.LevelMemory, "logged": tier.LevelLogged, "synced": tier.LevelSynced,
}

// openGrace is the longest time that the start waits for the disk tier to open, so that the first
// lookups find the entries of the disk. 100,000 entries open in less time. A slower disk continues
// to open while the daemon serves.
const openGrace = 3 * time.Second

// startDisk starts the disk tier, which runs until stopDisk. It waits up to openGrace for the tier
// to open; the daemon continues in any case.
func (d *Daemon) startDisk(ctx context.Context) {
	if d.disk == nil {
		return
	}
	run, abandon := context.WithCancel(context.Background())
	d.abandonDisk = abandon
	d.diskRun.Go(func() {
		if err := d.disk.Run(run); err != nil {
			d.log.Error().Err(err).Str("tier", "disk").Msg("disk tier ended")
		}
	})
	limit := time.NewTimer(openGrace)
	defer limit.Stop()
	tick := time.NewTicker(openTick)
	defer tick.Stop()
	for d.diskComes() {
		select {
		case <-tick.C:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// diskComes reports whether the start should keep waiting: the disk tier is being opened, or the
// note of switched-off profiles is being read.
func (d *Daemon) diskComes() bool {
	switch state := d.disk.Health().State; {
	case state == disk.StateOpening:
		return true
	case state > disk.StateOpening:
		return false
	}
	select {
	case <-d.remembered.Loaded():
		return false
	default:
		return d.canary.Unknown() == "" // otherwise splicing is off for all profiles, and waiting longer may not help
	}
}

const openTick = 2 * time.Millisecond

// flush writes objects that exist only in memory to disk. It takes at most DrainTimeout.
func (d *Daemon) flush() {
	if d.disk == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.config.DrainTimeout)
	defer cancel()
	written, err := d.store.Flush(ctx)
	if err != nil {
		d.log.Warn().Err(err).Str("tier", "disk").Int("written", written).Msg("some objects in memory were not written to disk")
	} else if written > 0 {
		d.log.Info().Str("tier", "disk").Int("written", written).Msg("memory written to disk")
	}
}

// stopDisk closes the disk tier, which ends its run. The caller has closed the store, so the tier
// no longer reads the store's memory. Disk errors are only logged.
func (d *Daemon) stopDisk() {
	if d.disk == nil {
		return
	}
	err := d.disk.Close()
	if err != nil {
		d.log.Warn().Err(err).Str("tier", "disk").Msg("closing the disk tier failed: unsynced data may be lost")
	}
	if d.abandonDisk != nil {
		d.abandonDisk()
	}
	if err == nil {
		d.diskRun.Wait() // after an error, the run may hang in the kernel
	}
}
