package hbm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Options are what a Cache shares with its owner.
type Options struct {
	Lock     *lockhold.Mutex
	Objects  *objects.Set    // guarded by Lock
	Counters *stats.HBM      // guarded by Lock
	Memory   gpuipc.Device   // that the arena of Objects is of
	Arena    gpuipc.Region   // of Objects in memory
	Name     string          // of the region
	Running  *sync.WaitGroup // operations that touch memory; grows only under Lock
	Now      func() time.Time
	Log      zerolog.Logger
}

// Cache is the memory of an accelerator and the way into it.
type Cache struct {
	cfg    *Config
	o      Options
	dev    gpuipc.Accelerator
	arena  gpuipc.SharedRegion
	detach func() error // the arena in memory from the device

	// Guarded by the owner's lock.
	Flights *transfer.Engine[objects.CopyKey] // the promotions; whoever works on them is the owner's
	hints   transfer.Hints[objects.Identity]
	lost    bool // the device cannot be used any more
}

// Open makes the region and gives Objects its pools. The device is asked for nothing
// else. The configuration is complete and valid.
func Open(cfg *Config, o Options) (*Cache, error) {
	page := int64(cfg.PageBytes)
	public, private := cfg.PublicBytes/page*page, cfg.PrivateBytes/page*page
	region, err := cfg.Device.NewRegion(gpuipc.RegionSpec{
		Name: o.Name, Bytes: public + private, Access: gpuipc.ClientWrites, Way: cfg.Way,
	})
	if err != nil {
		return nil, deviceError(fmt.Sprintf("HBM of %d bytes", public+private), err)
	}
	arena, ok := region.(gpuipc.SharedRegion)
	if !ok {
		return nil, errors.Join(fmt.Errorf("HBM: a region that no client can map: %w", tier.ErrInvalid), region.Close())
	}
	detach, err := cfg.Device.AttachHost(o.Arena)
	if err != nil {
		return nil, errors.Join(deviceError("HBM: attach the arena in memory", err), region.Close())
	}
	h := &Cache{cfg: cfg, o: o, dev: cfg.Device, arena: arena, detach: detach}
	o.Objects.OpenCopies(arena, cfg.PageBytes, public, private)
	h.Flights = transfer.New[objects.CopyKey](transfer.Config{
		Lock: o.Lock, Workers: true, Queue: cfg.Queue, Now: o.Now, Idle: h.Guess,
	})
	return h, nil
}

// deviceError is tier.DeviceError that keeps a want of room apart.
func deviceError(what string, err error) error {
	if errors.Is(err, gpuipc.ErrFull) {
		return fmt.Errorf("%s: %w: %w", what, tier.ErrFull, err)
	}
	return tier.DeviceError(what, err)
}

// Close gives the region back. Nothing runs any more.
func (h *Cache) Close() error {
	if err := errors.Join(h.detach(), h.arena.Close()); err != nil {
		return fmt.Errorf("close HBM: %w", err)
	}
	return nil
}

// Arena is the region that extents of copies refer to.
func (h *Cache) Arena() gpuipc.SharedRegion { return h.arena }

// Device is the accelerator.
func (h *Cache) Device() gpuipc.Accelerator { return h.dev }

// PageBytes is the grain of allocation.
func (h *Cache) PageBytes() int { return h.cfg.PageBytes }

// Workers is how many goroutines are to work on Flights.
func (h *Cache) Workers() int { return h.cfg.Promotions }

// AttachEngine says that an engine of one rank of a profile reads HBM, until
// detach, which may be called again.
func (h *Cache) AttachEngine(p *objects.Profile, rank int) (detach func()) {
	h.o.Lock.Lock()
	defer h.o.Lock.Unlock()
	if p.Engines == nil {
		p.Engines = make([]int, p.Ranks)
	}
	p.Engines[rank]++
	return sync.OnceFunc(func() {
		h.o.Lock.Lock()
		defer h.o.Lock.Unlock()
		p.Engines[rank]--
	})
}

// Lost tells, under the lock, whether the device is known to be lost.
func (h *Cache) Lost() bool { return h.lost }

// deviceLost asks the device. An error cannot tell: what one client handed over may
// be refused for as many reasons as a device has to fail. A device that is never
// lost need not answer.
func (h *Cache) deviceLost() bool {
	device, ok := h.dev.(interface{ Lost() bool })
	return ok && device.Lost()
}

// Failed drops all copies once an error of the device turns out to come from its being
// lost.
func (h *Cache) Failed(err error) {
	if err == nil || !h.deviceLost() {
		return
	}
	h.o.Lock.Lock()
	copies, first := h.loseLocked()
	h.o.Lock.Unlock()
	if first {
		h.o.Log.Error().Err(err).Int("copies", copies).Str("tier", "hbm").Msg("the device is lost; the cache goes on without it")
	}
}

// loseLocked drops every copy. Memory and the lower tier have all of them.
func (h *Cache) loseLocked() (copies int, first bool) {
	if h.lost {
		return 0, false
	}
	h.lost = true
	h.o.Counters.Lost = 1
	copies = h.o.Objects.DropAllCopies(stats.DropLost)
	h.Flights.Stop(transfer.ErrLost)
	return copies, true
}
