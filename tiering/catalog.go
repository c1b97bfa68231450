package tiering

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
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
	counters    stats.Counters
	sweeps      uint64
	changed     sync.Cond // signals the cleaner and the sender: a write, send or sweep ended, or a pool is short
	cleanerIdle bool      // the cleaner waits for changed
	senderIdle  bool      // the sender of copies waits for changed
}

// openCatalog opens the arena of a store and returns its catalog, without objects.
func openCatalog(cfg Config) (*catalog, error) {
	page := int64(cfg.PageBytes)
	public, private := cfg.PublicBytes/page*page, cfg.PrivateBytes/page*page
	arena, err := cfg.Device.NewRegion(gpuipc.RegionSpec{
		Name: cfg.Name, Bytes: public + private, Access: gpuipc.ClientReads, Huge: cfg.Huge,
	})
	if err != nil {
		return nil, fmt.Errorf("arena of %d bytes: %w", public+private, err)
	}
	cat := &catalog{
		cfg: cfg, dev: cfg.Device, arena: arena, place: tier.PlaceHBM,
		decisions: decision.NewLog(cfg.MaxDecisions), durations: newDurations(),
	}
	cat.decisions.Listen(cfg.Decided)
	if cfg.Device.Describe().Kind == "host" {
		cat.place = tier.PlaceDRAM
	}
	tenants := make([]*objects.Tenant, len(cfg.Tenants))
	for i, t := range cfg.Tenants {
		tenants[i] = &objects.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt, QuotaBytes: t.QuotaBytes}
	}
	cat.objects = objects.New(objects.Options{
		Now: cfg.Now, Log: cat.decisions, Lower: cfg.Lower, Find: cfg.Find, Held: cfg.Held, Place: cat.place, Arena: arena, PageBytes: cfg.PageBytes, Public: public, Private: private,
		MaxChain: cfg.MaxChain, MaxGhosts: cfg.MaxDeparted,
		EvictionPublic: cfg.EvictionPublic, EvictionPrivate: cfg.EvictionPrivate, Eviction: cfg.Eviction,
		HighWater: cfg.HighWater, LowWater: cfg.LowWater, Short: cat.wakeIdleCleaner, Outlets: len(cfg.Outlets) > 0,
	}, tenants, &cat.counters)
	cat.objects.Policies.WriteBehind = cfg.WriteBehind
	cat.objects.Policies.SendAll = slices.ContainsFunc(cfg.Outlets, func(o Outlet) bool { return o.All })
	cat.profiles.Store(&[]*objects.Profile{})
	cat.changed.L = &cat.mu
	return cat, nil
}

// newLeaseID returns an id from the sequence of leases. No id is returned twice.
func (cat *catalog) newLeaseID() tier.LeaseID { return tier.LeaseID(cat.leaseIDs.Add(1)) }

// client is one client of the store, as far as all parts know it. Guarded by the store's
// lock, except the name.
type client struct {
	name   string
	closed bool
	ended  chan struct{} // closed when closed is set
}

// openLocked returns an error if the store or the client's session is closed. Every call of
// a session checks it first.
func (cat *catalog) openLocked(c *client) error {
	if cat.closed {
		return tier.ErrUnavailable
	}
	if c.closed {
		return fmt.Errorf("session %q is closed: %w", c.name, tier.ErrGone)
	}
	return nil
}

// closeLocked makes new calls fail and wakes the calls that wait for promotions.
func (c *client) closeLocked() {
	if !c.closed {
		c.closed = true
		close(c.ended)
	}
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

// sweptLocked begins the next sweep, after which work that was refused is tried again.
func (cat *catalog) sweptLocked() {
	cat.sweeps++
	cat.wakeIdleCleaner()
}

// wakeCleaner wakes the cleaner and the sender, so that they notice that their context has ended.
func (cat *catalog) wakeCleaner() {
	cat.mu.Lock()
	defer cat.mu.Unlock()
	cat.changed.Broadcast()
}

// cleanRows is the maximum number of writes that one critical section of the cleaner starts.
const cleanRows = 8

// holdRows is the maximum number of rows that one critical section handles. It bounds how long a
// lookup waits for the lock, however much a client, an operator or an eviction asks for at once.
const holdRows = 16

// chainPagesLocked returns the bytes of pages that an entry of the lower tier and its
// ancestors take in memory.
func (cat *catalog) chainPagesLocked(e *tier.Entry, p *objects.Profile, t *objects.Tenant) (bytes int64) {
	node := *e
	for range cat.cfg.MaxChain {
		bytes += cat.objects.Memory.PagesOf(p.NodeParts(node.Kind, node.End-node.Begin).Bytes) * int64(p.Ranks)
		if node.Parent == (tier.Name{}) {
			return bytes
		}
		up := node.Parent
		var held bool
		if node, held = cat.objects.Below.Lookup(up, p, t); !held {
			for o := cat.objects.Names.Find(up, p, t); o != nil; o = o.Parent {
				bytes += o.PageBytes
			}
			return bytes
		}
	}
	return bytes
}

// planTook updates the measured costs of composing, rotating and replaying with the time
// that a plan took on one rank. The other ranks do the same work in parallel.
func (cat *catalog) planTook(sc plan.Scope, t plan.Timing) {
	p, err := cat.profile(sc.Profile)
	if err != nil {
		return // no longer registered
	}
	shape := &p.Costs.Model().Shape
	if t.Replay > 0 {
		_, bytes := shape.KeptBytes(0, t.Replayed)
		p.Costs.Did(cost.JobReplay, bytes, t.Replay)
		return
	}
	p.Costs.Did(cost.JobCompose, int64(t.Segments)*shape.SegmentTotalBytes(0), t.Compose)
	p.Costs.Did(cost.JobRotate, shape.RowBytes(t.Rows), t.Rotate)
}
