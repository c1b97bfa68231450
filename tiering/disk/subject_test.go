package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
	"github.com/spliced-kv/spliced/tiering/tiertest/storetest"
)

// subject is a tier of this package as tiertest wants it: on a file system in
// memory that can lose what was not synced and fail on demand, or in a directory.
type subject struct {
	tiertest.Tier
	shelf  *shelf
	cfg    Config
	mem    *vfs.MemFS // nil = a directory
	faults *slabtest.Faults
	late   atomic.Int64 // by how much the tier's clock is ahead

	tier  *Tier
	stop  context.CancelFunc
	ended chan error
}

// newSubject opens a tier of some budgets and options. The file system is one in
// memory unless the configuration names a directory of its own.
func newSubject(t testing.TB, o tiertest.Options, cfg Config, seed uint64) *subject {
	t.Helper()
	s := &subject{shelf: newShelf(t)}
	cfg.PublicBytes, cfg.PrivateBytes, cfg.Device = o.PublicBytes, o.PrivateBytes, s.shelf.dev
	for _, tenant := range o.Tenants {
		cfg.Tenants = append(cfg.Tenants, Tenant{tenant.ID, tenant.Name})
	}
	cfg.QueueLen = cmp.Or(o.MaxBegun, cfg.QueueLen)
	cfg.SyncEvery, cfg.RetryMin, cfg.RetryMax, cfg.DrainTime = cmp.Or(cfg.SyncEvery, time.Hour), time.Millisecond, time.Millisecond, time.Minute
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(s.late.Load())) }
	cfg = cfg.withDefaults()
	s.cfg = cfg
	s.Memory = tiertest.NewMemory(t, s.shelf.dev, 48<<20)
	s.Trait = tiertest.Traits{
		Lowest: tier.LevelLogged, Highest: tier.LevelSynced, Budget: o.PublicBytes + o.PrivateBytes, MaxBegun: cfg.QueueLen,
	}
	if cfg.Dir == "" {
		s.cfg.Dir = "tier"
		s.on(vfs.NewCrashableMem(), seed)
	}
	must(t, s.begin())
	return s
}

// on has the tier use a file system in memory.
func (s *subject) on(mem *vfs.MemFS, seed uint64) {
	s.mem = mem
	s.cfg = onMem(s.cfg, mem)
	s.faults = slabtest.NewFaults(s.cfg.Slabs, seed)
	s.cfg.Slabs = s.faults
}

func (s *subject) begin() error {
	t, err := Open(s.cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.tier, s.Tier.Tier, s.stop, s.ended = t, t, cancel, make(chan error, 1)
	go func() { s.ended <- t.Run(ctx) }()
	// A tier that is closed before it runs is an error of its own.
	tiertest.Wait(time.Minute, func() bool { return t.Health().State != StateOK || s.running() })
	if h := t.Health(); h.State != StateOK {
		return fmt.Errorf("opened in state %v: %s: %w", h.State, h.Cause, s.end(tiertest.Killed))
	}
	return nil
}

func (s *subject) running() bool {
	s.tier.mu.Lock()
	defer s.tier.mu.Unlock()
	return s.tier.running
}

// end ends a tier: in good order, or with whatever it is doing.
func (s *subject) end(how tiertest.Ending) error {
	if how != tiertest.Closed {
		s.stop()
		err := <-s.ended
		_ = s.tier.Close() // what it says is of a disk that is not ours any more
		return err
	}
	defer s.stop()
	return errors.Join(s.tier.Close(), <-s.ended)
}

func (s *subject) Settle() {}

// Held is what the pools hold: tenants are charged for rows beside.
func (s *subject) Held() (bytes int64) {
	for _, p := range s.tier.Usage().Pools {
		bytes += p.UsedBytes
	}
	return bytes
}

// Close ends the subject; a story may have done so already.
func (s *subject) Close() error {
	if s.tier.Health().State == StateClosed {
		return nil
	}
	return s.end(tiertest.Closed)
}

// Check waits for space on its way back, which is free a moment before it is
// counted so.
func (s *subject) Check() error {
	tiertest.Wait(10*time.Second, s.spaceAdds)
	s.shelf.check(s.tier)
	return nil
}

func (s *subject) spaceAdds() bool {
	s.tier.mu.Lock()
	defer s.tier.mu.Unlock()
	m := s.tier.mount
	if m == nil {
		return true
	}
	sum := m.Space.FreeBytes() + s.tier.leaving
	for _, e := range s.tier.index {
		sum += slab.RunBytes(e.Runs)
	}
	return sum == m.capacity
}

func (s *subject) Endings() []tiertest.Ending {
	if s.mem == nil {
		return []tiertest.Ending{tiertest.Closed}
	}
	return []tiertest.Ending{tiertest.Closed, tiertest.Killed, tiertest.PowerLost}
}

// cut is the file system as it is at this moment, less what an ending loses.
func (s *subject) cut(how tiertest.Ending, unsynced int, rng *rand.Rand) *vfs.MemFS {
	switch how {
	case tiertest.Killed:
		unsynced = 100
	case tiertest.Closed:
		return s.mem
	}
	return s.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rng})
}

func (s *subject) Restart(how tiertest.Ending, unsynced int, rng *rand.Rand) error {
	left := s.cut(how, unsynced, rng)
	if err := s.end(how); err != nil {
		return err
	}
	if left != nil {
		s.on(left, rng.Uint64())
	}
	return s.begin()
}

// Spoil changes one to three bits anywhere in what an entry's runs hold.
func (s *subject) Spoil(o *tiertest.Object, rng *rand.Rand) (bool, error) {
	runs, used := s.runsOf(o.Name)
	if runs == nil {
		return false, nil
	}
	for range 1 + rng.IntN(3) {
		if err := s.flip(runs, rng.Int64N(used), 1<<rng.IntN(8)); err != nil {
			return true, err
		}
	}
	return true, nil
}

// runsOf is where an entry lies, and how much of that was written.
func (s *subject) runsOf(n tier.Name) (runs []slab.Run, used int64) {
	s.tier.mu.Lock()
	defer s.tier.mu.Unlock()
	if e := s.tier.index[n]; e != nil && e.phase.live() {
		return e.Runs, int64(e.HeaderBytes) + e.PayloadBytes
	}
	return nil, 0
}

// flip changes the byte at an offset into runs.
func (s *subject) flip(runs []slab.Run, off int64, mask byte) error {
	for _, r := range runs {
		if off >= r.Len {
			off -= r.Len
			continue
		}
		name := fmt.Sprintf("%06d.slab", r.Slab)
		if s.faults != nil {
			return s.faults.Flip(name, r.Off+off, mask)
		}
		return flipInFile(filepath.Join(s.cfg.Dir, slabDir, name), r.Off+off, mask)
	}
	return fmt.Errorf("%d bytes beyond the runs", off)
}

func flipInFile(path string, off int64, mask byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		return err
	}
	b[0] ^= mask
	_, err = f.WriteAt(b, off)
	return err
}

// Disturb has some transfers go wrong: with errors and short reads, or also in ways
// that nobody is told of.
func (s *subject) Disturb(rng *rand.Rand, lies bool) {
	rate := 0.02 + 0.2*rng.Float64()
	rules := []slabtest.Rule{
		{Op: slabtest.OpRead, Kind: slabtest.FaultFlipRead, Rate: rate, Bits: 1 + rng.IntN(3)},
		{Op: slabtest.OpRead, Kind: slabtest.FaultShort, Rate: rate},
		{Op: slabtest.OpRead, Errno: unix.EIO, Rate: rate},
		{Op: slabtest.OpWrite, Errno: unix.EIO, Rate: rate / 4},
		{Op: slabtest.OpWrite, Errno: unix.ENOSPC, Rate: rate / 4},
		{Op: slabtest.OpCreate, Errno: unix.ENOSPC, Rate: rate},
		{Op: slabtest.OpSync, Errno: unix.EIO, Rate: rate / 2},
	}
	if lies {
		rules = append(rules,
			slabtest.Rule{Op: slabtest.OpWrite, Kind: slabtest.FaultTorn, Rate: rate},
			slabtest.Rule{Op: slabtest.OpWrite, Kind: slabtest.FaultReordered, Rate: rate},
			slabtest.Rule{Op: slabtest.OpWrite, Kind: slabtest.FaultFlipRest, Rate: rate})
	}
	s.faults.Set(rules...)
}

// Calm lets the clock run ahead, so that a pause of reads ends, and waits for the
// tier. What runs meanwhile seems to hang until it ends.
func (s *subject) Calm() error {
	s.faults.Set()
	calm := tiertest.Wait(time.Minute, func() bool {
		h := s.tier.Health()
		if h.State != StateOK || h.ReadStalled+h.WriteStalled > 0 {
			return false
		}
		if !h.Reads {
			s.late.Add(int64(breakerMax))
		}
		return h.Reads
	})
	if !calm {
		h := s.tier.Health()
		return fmt.Errorf("the tier is still in state %v: %s", h.State, h.Cause)
	}
	return nil
}

// stack is a store over a subject.
type stack struct {
	*storetest.Store
	below *subject
	cfg   tiering.Config
	o     tiertest.Options
}

// stackMemory is how much memory a store over a tier of some budget gets: a
// quarter, but room for the largest object several times.
func stackMemory(budget int64, o *tiertest.Options) int64 {
	if budget == 0 {
		return 0
	}
	return max(budget/4, 3*o.LargestBytes, 128<<10)
}

func newStack(t testing.TB, o tiertest.Options, cfg tiering.Config, below Config, seed uint64) *stack {
	t.Helper()
	s := &stack{o: o, cfg: cfg}
	lower := o
	lower.MaxBegun = 0
	s.below = newSubject(t, lower, below, seed)
	s.cfg.Device, s.cfg.Tenants = s.below.shelf.dev, storetest.Tenants(o.Tenants)
	s.cfg.PublicBytes = cmp.Or(cfg.PublicBytes, stackMemory(o.PublicBytes, &o))
	s.cfg.PrivateBytes = cmp.Or(cfg.PrivateBytes, stackMemory(o.PrivateBytes, &o))
	s.cfg.MaxReservations = cmp.Or(o.MaxBegun, 1024)
	must(t, s.begin())
	return s
}

func (s *stack) begin() (err error) {
	s.cfg.Lower = s.below.tier
	s.Store, err = storetest.New(s.cfg, s.below.Memory, tiertest.Traits{
		Lowest: tier.LevelMemory, Highest: tier.LevelSynced, MaxBegun: s.cfg.MaxReservations,
		Budget: s.cfg.PublicBytes + s.cfg.PrivateBytes + s.o.PublicBytes + s.o.PrivateBytes,
	})
	return err
}

func (s *stack) Close() error {
	return errors.Join(s.Stop(false), s.below.Close())
}

// Held is what the pools of memory and of the tier below hold.
func (s *stack) Held() int64 { return s.Store.Held() + s.below.Held() }

func (s *stack) Check() error                                           { return s.below.Check() }
func (s *stack) Endings() []tiertest.Ending                             { return s.below.Endings() }
func (s *stack) Disturb(rng *rand.Rand, lies bool)                      { s.below.Disturb(rng, lies) }
func (s *stack) Calm() error                                            { return s.below.Calm() }
func (s *stack) Spoil(o *tiertest.Object, rng *rand.Rand) (bool, error) { return s.below.Spoil(o, rng) }

func (s *stack) Restart(how tiertest.Ending, unsynced int, rng *rand.Rand) error {
	left := s.below.cut(how, unsynced, rng)
	flush := how == tiertest.Closed
	if err := s.Stop(flush); err != nil && flush {
		return err
	}
	if err := s.below.end(how); err != nil {
		return err
	}
	if left != nil {
		s.below.on(left, rng.Uint64())
	}
	if err := s.below.begin(); err != nil {
		return err
	}
	return s.begin()
}
