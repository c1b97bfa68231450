package hbm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Options are shared by a Cache and its owner.
type Options struct {
	Lock    *lockhold.Mutex
	Objects *objects.Set    // guarded by Lock
	Memory  gpuipc.Device   // the device of the arena in memory
	Arena   gpuipc.Region   // the arena in memory
	Name    string          // name of the regions
	Running *sync.WaitGroup // operations that touch memory; Add needs Lock
	Now     func() time.Time
	Log     zerolog.Logger
	Took    func(seconds float64) // called for each copy that was made; nil = no listener
}

// Cache is the memory of one accelerator and its transfers.
type Cache struct {
	cfg Config
	o   Options
	dev gpuipc.Accelerator
	regions
	opened chan struct{} // closed when the device has answered the request to open it

	memory *objects.Device // guarded by the owner's lock

	// Guarded by the owner's lock.
	Flights *transfer.Engine[objects.CopyKey] // the promotions; the owner runs the workers
	hints   transfer.Hints[objects.Identity]
}

// regions is the memory that a device has granted; zero if it granted none.
type regions struct {
	arena  gpuipc.SharedRegion
	detach func() error // detaches the arena in memory from the device
}

// List has the caches of a store, in the order of their devices' ids.
type List []*Cache

// Of returns the cache on a device; nil if there is no such device.
func (l List) Of(id tier.DeviceID) *Cache {
	if id == 0 || int(id) > len(l) {
		return nil
	}
	return l[id-1]
}

// Open creates the regions of all devices concurrently and adds their pools to Objects. It
// requests nothing else from the devices. A device that refuses, or does not answer in
// time, counts as lost from the start and does not delay the others. The configurations
// must be complete and valid.
func Open(cfgs []Config, o Options) List {
	list := make(List, len(cfgs))
	errs := make([]error, len(cfgs))
	var opening sync.WaitGroup
	for i := range cfgs {
		list[i] = &Cache{cfg: cfgs[i], o: o, dev: cfgs[i].Device, opened: make(chan struct{})}
		opening.Go(func() { errs[i] = list[i].open() })
	}
	opening.Wait()
	for i, h := range list {
		h.begin()
		if errs[i] != nil {
			h.o.Objects.HBM.Lose(h.memory)
			h.tell(errs[i])
		}
	}
	return list
}

// ErrNoAnswer means that a device counts as lost because it did not answer. Its driver may
// still be working on its memory.
var ErrNoAnswer = errors.New("the device gives no memory")

// open creates the region and registers the arena in memory, within a time limit. If the
// device answers later, open releases what it granted.
func (h *Cache) open() error {
	r, answered, err := gpuipc.Within(context.Background(), h.cfg.OpenTimeout, h.ask, func(r regions, err error) {
		defer close(h.opened)
		if err == nil {
			h.o.Log.Warn().AnErr("trouble", errors.Join(r.detach(), r.arena.Close())).Str("tier", "hbm").
				Stringer("device", h.dev.UUID()).Msg("a device has answered too late: its memory is given back")
		}
	})
	if !answered {
		return fmt.Errorf("HBM: %w within %v: %w", ErrNoAnswer, h.cfg.OpenTimeout, tier.ErrUnavailable)
	}
	close(h.opened)
	h.regions = r
	return err
}

func (h *Cache) ask() (r regions, err error) {
	public, private := h.cfg.budgets()
	region, err := h.dev.NewRegion(gpuipc.RegionSpec{
		Name: h.o.Name, Bytes: public + private, Access: gpuipc.ClientWrites, Way: h.cfg.Way,
	})
	if err != nil {
		return r, deviceError(fmt.Sprintf("HBM of %d bytes", public+private), err)
	}
	arena, ok := region.(gpuipc.SharedRegion)
	if !ok {
		return r, errors.Join(fmt.Errorf("HBM: a region that no client can map: %w", tier.ErrInvalid), region.Close())
	}
	detach, err := h.dev.AttachHost(h.o.Arena)
	if err != nil {
		return r, errors.Join(deviceError("HBM: attach the arena in memory", err), region.Close())
	}
	return regions{arena, detach}, nil
}

// begin adds the device's pools to Objects. Their budgets are 0 if there is no region.
func (h *Cache) begin() {
	var public, private int64
	if h.arena != nil {
		public, private = h.cfg.budgets()
	}
	h.memory = h.o.Objects.HBM.Open(h.arena, h.cfg.PageBytes, public, private)
	h.Flights = transfer.New[objects.CopyKey](transfer.Config{
		Lock: h.o.Lock, Workers: true, Queue: h.cfg.Queue, Now: h.o.Now, Idle: h.Guess, Took: h.took,
	})
}

func (h *Cache) took(_ int, d time.Duration) {
	if h.o.Took != nil {
		h.o.Took(d.Seconds())
	}
}

// deviceError is tier.DeviceError, but it keeps ErrFull.
func deviceError(what string, err error) error {
	if errors.Is(err, gpuipc.ErrFull) {
		return errkind.With(fmt.Errorf("%s: %w", what, err), tier.ErrFull)
	}
	return tier.DeviceError(what, err)
}

// Close releases the region. It waits until the device has answered the request to open
// it. No operation may be running any more.
func (h *Cache) Close() error {
	<-h.opened
	if h.arena == nil {
		return nil
	}
	if err := errors.Join(h.detach(), h.arena.Close()); err != nil {
		return fmt.Errorf("close HBM of %v: %w", h.dev.UUID(), err)
	}
	return nil
}

// Arena returns the region that the extents of copies refer to; nil if the device granted none.
func (h *Cache) Arena() gpuipc.SharedRegion { return h.arena }

// Device returns the accelerator.
func (h *Cache) Device() gpuipc.Accelerator { return h.dev }

// ID returns the id of its device.
func (h *Cache) ID() tier.DeviceID { return h.memory.ID }

// Pools returns the pools of segments and of checkpoints.
func (h *Cache) Pools() []*objects.Pool { return h.memory.Pools[:] }

// Counters returns a snapshot of the device's counters, without those of plans. The caller
// holds the lock.
func (h *Cache) Counters() stats.HBM {
	c, flights := h.memory.Counters, h.Flights.Stats(0)
	c.Promotions, c.PromotionsBusy, c.Promoting = flights.Ended, flights.Busy, uint64(h.Flights.Len(0))
	return c
}

// Count returns the device's counters, in which the caller counts events. The caller holds
// the lock.
func (h *Cache) Count() *stats.HBM { return &h.memory.Counters }

// PageBytes returns the unit of allocation in bytes.
func (h *Cache) PageBytes() int { return h.cfg.PageBytes }

// Workers returns the number of workers that Flights needs.
func (h *Cache) Workers() int { return h.cfg.Promotions }

// AttachEngine records that an engine of one rank of a profile reads on the device, until the
// caller calls the returned function detach. A second call of detach does nothing.
func (h *Cache) AttachEngine(p *objects.Profile, rank int) (detach func()) {
	h.o.Lock.Lock()
	defer h.o.Lock.Unlock()
	p.Attach(rank, h.memory)
	return sync.OnceFunc(func() {
		h.o.Lock.Lock()
		defer h.o.Lock.Unlock()
		p.Detach(rank, h.memory)
	})
}

// Lost reports whether the device is known to be lost. The caller holds the lock.
func (h *Cache) Lost() bool { return h.memory.Lost }

// deviceLost asks the device whether it is lost. The error of an operation does not show
// that, since a client's input may cause errors too. A device that cannot be lost need not
// have the method Lost.
func (h *Cache) deviceLost() bool {
	device, ok := h.dev.(interface{ Lost() bool })
	return ok && device.Lost()
}

// Failed is called after an error of the device. If the device turns out to be lost, Failed
// drops all copies on it.
func (h *Cache) Failed(err error) {
	if err == nil || !h.deviceLost() {
		return
	}
	h.o.Lock.Lock()
	if h.memory.Lost {
		h.o.Lock.Unlock()
		return
	}
	copies := h.o.Objects.HBM.Lose(h.memory)
	h.Flights.Stop(transfer.ErrLost)
	h.o.Lock.Unlock()
	h.o.Log.Error().Err(err).Int("copies", copies).Str("tier", "hbm").Stringer("device", h.dev.UUID()).
		Msg("the device is lost; the cache goes on without it")
	h.tell(err)
}

// tell notifies the listener that the device is lost.
func (h *Cache) tell(err error) {
	if h.cfg.Lost != nil {
		h.cfg.Lost(err)
	}
}
