package tiering

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// catalog has the state that all parts of a store share: its configuration, its memory, and
// under one lock the objects, sessions and counters. It does no I/O and decides nothing.
type catalog struct {
	// Fixed after Open.
	cfg       Config
	dev       gpuipc.Device
	place     tier.Place
	arena     gpuipc.Region
	hbm       hbm.List // by device; the fields of hbm.Cache say what guards them
	plans     *plan.Runner
	durations *durations
	decisions *decision.Log
	// launch starts, at the tiers, transfers that were begun under the lock. It is called
	// without the lock after anything that may begin transfers.
	launch func()
	// freedLocked makes transfers that wait for memory try again.
	freedLocked func()

	profiles atomic.Pointer[[]*objects.Profile] // replaced under mu, never modified
	leaseIDs atomic.Uint64
	running  sync.WaitGroup // operations that touch memory; while the store is open, Add needs mu

	mu          lockhold.Mutex
	closed      bool
	objects     *objects.Set
	sessions    map[*Session]struct{}
	counters    stats.Counters
	sweeps      uint64
	changed     sync.Cond // signals the cleaner and the sender: a write, send or sweep ended, or a pool is short
	cleanerIdle bool      // the cleaner waits for changed
	senderIdle  bool      // the sender of copies waits for changed
}

// scope returns the profile and tenant that a query names.
func (cat *catalog) scope(p tier.ProfileID, t tier.TenantID, rank int) (*objects.Profile, *objects.Tenant, error) {
	ps, err := cat.profile(p)
	if err != nil {
		return nil, nil, err
	}
	if err := ps.CheckRank(rank); err != nil {
		return nil, nil, err
	}
	tn, err := cat.tenant(t)
	return ps, tn, err
}

func (cat *catalog) tenant(id tier.TenantID) (*objects.Tenant, error) {
	t, ok := cat.objects.Tenants[id]
	if !ok {
		return nil, fmt.Errorf("tenant %d is not configured: %w", id, tier.ErrInvalid)
	}
	return t, nil
}

func (cat *catalog) profile(id tier.ProfileID) (*objects.Profile, error) {
	known := *cat.profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *objects.Profile, id tier.ProfileID) int { return cmp.Compare(ps.ID, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
	}
	return known[at], nil
}

// registered returns the profile with a fingerprint, nil if there is none. It takes no
// lock.
func (cat *catalog) registered(f profile.Fingerprint) *objects.Profile {
	for _, ps := range *cat.profiles.Load() {
		if ps.Fingerprint() == f {
			return ps
		}
	}
	return nil
}

// of returns the counters of a profile's objects. The caller holds the lock.
func (cat *catalog) of(p *objects.Profile) *stats.Counters { return cat.objects.Records.Of(p) }

// inTurns calls f under the lock and repeats the call while f returns ErrAgain. Other
// goroutines can take the lock between two calls.
func (cat *catalog) inTurns(f func() error) error {
	t := cat.mu.Turns()
	turn := func() error {
		t.Lock()
		defer t.Unlock()
		return f()
	}
	for {
		err := turn()
		if !errors.Is(err, objects.ErrAgain) {
			return err
		}
		cat.launch() // an eviction may have to wait for a write
	}
}

// wakeIdleCleaner wakes the cleaner and the sender if they wait, because a pool has become
// short of free bytes.
func (cat *catalog) wakeIdleCleaner() {
	if cat.cleanerIdle || cat.senderIdle {
		cat.changed.Broadcast()
	}
}

// wakeCleaner wakes the cleaner and the sender, so that they notice that their context has ended.
func (cat *catalog) wakeCleaner() {
	cat.mu.Lock()
	defer cat.mu.Unlock()
	cat.changed.Broadcast()
}
