package tiering

import (
	"errors"
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// HBM puts the memory of an accelerator above the store: an inclusive cache of
// what lies in memory or in the lower tier. The zero value of a field that is not
// marked required takes the default that is named with it. The arena in memory is
// registered with the device, which may pin, and so back, all of it from the start.
//
// A copy is one rank's share of an object, since each rank of an engine has a GPU
// of its own. Clients can write what they import, so nothing is ever copied back
// down: a copy leaves by being dropped, and the store reads HBM for a request that
// asks for it, never for anything that outlives the request.
//
// Invariant: a copy is found only while its object is whole in memory with the
// digests that the copy was verified against, or lies in the lower tier as the
// entry that was there when the object left memory.
//
// Invariant: every byte of a copy that is found was hashed by the device where it
// lies, and had the object's digests, before the copy was found.
//
// Invariant: what is leased, written or used by an operation in HBM is freed after
// that ends, whatever has become of its object or of the device.
type HBM struct {
	Device gpuipc.Accelerator // required; closed by its owner, after the store
	Way    gpuipc.Way         // how its region is to reach clients; 0 = the device's choice

	// Budgets in bytes, rounded down to whole pages: of segments, and of
	// checkpoints and the rows of buffers. One may be 0.
	PublicBytes  int64
	PrivateBytes int64
	PageBytes    int // as Config's; 64 KiB

	Promotions int // into HBM at once; 2 (a guess: one copies while another is settled)
	Queue      int // promotions into HBM that are wanted or running; 4096
	// AfterMatch promotes what a match finds in memory for the ranks whose engines
	// are attached, see Store.AttachEngine. A guess takes free room only.
	AfterMatch bool
}

func (h *HBM) withDefaults() *HBM {
	if h == nil {
		return nil
	}
	full := *h
	setDefault(&full.PageBytes, 64<<10)
	setDefault(&full.Promotions, 2)
	setDefault(&full.Queue, 4096)
	return &full
}

func (h *HBM) validate(check func(ok bool, format string, args ...any)) {
	if h == nil {
		return
	}
	page := h.PageBytes
	check(h.Device != nil, "HBM without a device")
	check(page >= minPageBytes && page <= maxPageBytes && page&(page-1) == 0,
		"HBM: page of %d bytes is not a power of two from %d to %d", page, minPageBytes, maxPageBytes)
	check(h.PublicBytes >= 0 && h.PrivateBytes >= 0 && max(h.PublicBytes, h.PrivateBytes) >= int64(page),
		"HBM: pools of %d and %d bytes in pages of %d", h.PublicBytes, h.PrivateBytes, page)
	check(h.Promotions > 0 && h.Queue > 0, "HBM: %d promotions at once, %d in the queue", h.Promotions, h.Queue)
}

// hbm is a store's HBM.
type hbm struct {
	cfg    *HBM
	dev    gpuipc.Accelerator
	arena  gpuipc.SharedRegion
	detach func() error // the arena in memory from the device

	// Guarded by the store's lock.
	up    *transfer.Engine[objects.CopyKey]
	hints transfer.Hints[wanted]
	lost  bool // the device cannot be used any more
}

// openHBM makes the region and its pools. The device is asked for nothing else.
func (s *Store) openHBM() (err error) {
	cfg := s.cfg.HBM
	if cfg == nil {
		return nil
	}
	page := int64(cfg.PageBytes)
	public, private := cfg.PublicBytes/page*page, cfg.PrivateBytes/page*page
	region, err := cfg.Device.NewRegion(gpuipc.RegionSpec{
		Name: s.cfg.Name + "-hbm", Bytes: public + private, Access: gpuipc.ClientWrites, Way: cfg.Way,
	})
	if err != nil {
		return hbmError(fmt.Sprintf("HBM of %d bytes", public+private), err)
	}
	arena, ok := region.(gpuipc.SharedRegion)
	if !ok {
		return errors.Join(fmt.Errorf("HBM: a region that no client can map: %w", tier.ErrInvalid), region.Close())
	}
	detach, err := cfg.Device.AttachHost(s.arena)
	if err != nil {
		return errors.Join(hbmError("HBM: attach the arena in memory", err), region.Close())
	}
	h := &hbm{
		cfg: cfg, dev: cfg.Device, arena: arena, detach: detach,
	}
	s.objects.OpenCopies(arena, cfg.PageBytes, public, private)
	s.hbm = h
	s.openHBMPromotions()
	return nil
}

// hbmError is tier.DeviceError that keeps a want of room apart.
func hbmError(what string, err error) error {
	if errors.Is(err, gpuipc.ErrFull) {
		return fmt.Errorf("%s: %w: %w", what, tier.ErrFull, err)
	}
	return tier.DeviceError(what, err)
}

// closeHBM gives the region back. Nothing runs any more.
func (s *Store) closeHBM() error {
	if s.hbm == nil {
		return nil
	}
	if err := errors.Join(s.hbm.detach(), s.hbm.arena.Close()); err != nil {
		return fmt.Errorf("close HBM: %w", err)
	}
	return nil
}

// DeviceArena is the region that extents of leases in HBM refer to; nil without
// HBM. It is the same for the life of the store.
func (s *Store) DeviceArena() gpuipc.SharedRegion {
	if s.hbm == nil {
		return nil
	}
	return s.hbm.arena
}

// AttachEngine says that an engine of one rank of a profile reads HBM, until
// detach, which may be called again.
func (s *Store) AttachEngine(id tier.ProfileID, rank int) (detach func(), err error) {
	p, err := s.profile(id)
	if err == nil {
		err = p.CheckRank(rank)
	}
	if err == nil && s.hbm == nil {
		err = errNoHBM
	}
	if err != nil {
		return nil, fmt.Errorf("attach an engine: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Engines == nil {
		p.Engines = make([]int, p.Ranks)
	}
	p.Engines[rank]++
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			p.Engines[rank]--
		})
	}, nil
}

var errNoHBM = fmt.Errorf("the store has no HBM: %w", tier.ErrUnavailable)

// hbmIsLost asks the device. An error cannot tell: what one client handed over may
// be refused for as many reasons as a device has to fail. A device that is never
// lost need not answer.
func (s *Store) hbmIsLost() bool {
	device, ok := s.hbm.dev.(interface{ Lost() bool })
	return ok && device.Lost()
}

// failedHBM drops all copies once an error of the device turns out to come from
// its being lost.
func (s *Store) failedHBM(err error) {
	if err == nil || !s.hbmIsLost() {
		return
	}
	s.mu.Lock()
	copies, first := s.loseHBMLocked()
	s.mu.Unlock()
	if first {
		s.cfg.Log.Error().Err(err).Int("copies", copies).Str("tier", "hbm").Msg("the device is lost; the cache goes on without it")
	}
}

// loseHBMLocked drops every copy. Memory and the lower tier have all of them.
func (s *Store) loseHBMLocked() (copies int, first bool) {
	h := s.hbm
	if h.lost {
		return 0, false
	}
	h.lost = true
	s.counters.HBM.Lost = 1
	for _, r := range s.objects.HBM.Held {
		copies += s.objects.DropCopies(r, stats.DropLost)
	}
	h.up.Stop(transfer.ErrLost)
	return copies, true
}

// sweepHBM drops copies whose object the lower tier has forgotten meanwhile, or
// whose profile nobody can ask for any more.
func (s *Store) sweepHBM() {
	if s.hbm == nil {
		return
	}
	for first, more := 0, true; more; first += holdRows {
		s.mu.Lock()
		more = s.objects.SweepCopies(first, holdRows)
		s.mu.Unlock()
	}
}
