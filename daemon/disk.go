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

// diskEviction is the eviction policy of the disk, by its name in settings.
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
	// By name: ids follow the order of the configuration, which may change.
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

// openGrace is the time the start waits for the disk tier, so that the first lookups find its
// entries: opening 100,000 entries takes less. A slower disk is opened while the daemon serves.
const openGrace = 3 * time.Second

// startDisk runs the disk tier until stopDisk and briefly waits for it to open. The daemon
// continues in any case.
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

// diskComes reports whether the disk tier is being opened, or its notes are being read.
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
		return d.canary.Unknown() == "" // else everything is off, however long it takes
	}
}

const openTick = 2 * time.Millisecond

// flush writes objects that exist only in memory to disk, within DrainTimeout.
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

// stopDisk closes the tier, which ends its run. It is called after the store, whose memory
// the tier reads, was closed. Disk errors are not errors of the daemon.
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
		d.diskRun.Wait() // else it may hang in the kernel
	}
}
