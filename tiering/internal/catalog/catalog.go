package catalog

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

// Catalog has the state that all parts of a store share: its configuration, its memory, and
// under one lock the objects and counters. It does no I/O and decides nothing.
type Catalog struct {
	// Fixed after Open.
	Config    Config
	Device    gpuipc.Device
	Place     tier.Place
	Arena     gpuipc.Region
	Durations *Durations
	Decisions *decision.Log
	// Launch starts, at the tiers, transfers that were begun under the lock. It is called
	// without the lock after anything that may begin transfers.
	Launch func()

	Profiles atomic.Pointer[[]*objects.Profile] // replaced under Mu, never modified
	LeaseIDs atomic.Uint64
	Running  sync.WaitGroup // operations that touch memory; while the store is open, Add needs Mu

	Mu          lockhold.Mutex
	Closed      bool
	Objects     *objects.Set
	Counters    stats.Counters
	Sweeps      uint64
	Changed     sync.Cond // signals the cleaner and the sender: a write, send or sweep ended, or a pool is short
	CleanerIdle bool      // the cleaner waits for changed
	SenderIdle  bool      // the sender of copies waits for changed
}

// Open opens the arena of a store and returns its catalog, without objects.
func Open(cfg Config) (*Catalog, error) {
	page := int64(cfg.PageBytes)
	public, private := cfg.PublicBytes/page*page, cfg.PrivateBytes/page*page
	arena, err := cfg.Device.NewRegion(gpuipc.RegionSpec{
		Name: cfg.Name, Bytes: public + private, Access: gpuipc.ClientReads, Huge: cfg.Huge,
	})
	if err != nil {
		return nil, err // it names the region
	}
	cat := &Catalog{
		Config: cfg, Device: cfg.Device, Arena: arena, Place: tier.PlaceHBM,
		Decisions: decision.NewLog(cfg.MaxDecisions), Durations: newDurations(),
	}
	cat.Decisions.Listen(cfg.Decided)
	if cfg.Device.Describe().Kind == "host" {
		cat.Place = tier.PlaceDRAM
	}
	tenants := make([]*objects.Tenant, len(cfg.Tenants))
	for i, t := range cfg.Tenants {
		tenants[i] = &objects.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt, QuotaBytes: t.QuotaBytes}
	}
	cat.Objects = objects.New(objects.Options{
		Now: cfg.Now, Log: cat.Decisions, Lower: cfg.Lower, Find: cfg.Find, Held: cfg.Held, Place: cat.Place, Arena: arena, PageBytes: cfg.PageBytes, Public: public, Private: private,
		MaxChain: cfg.MaxChain, MaxGhosts: cfg.MaxDeparted,
		EvictionPublic: cfg.EvictionPublic, EvictionPrivate: cfg.EvictionPrivate, Eviction: cfg.Eviction,
		HighWater: cfg.HighWater, LowWater: cfg.LowWater, Short: cat.wakeIdleCleaner, Outlets: len(cfg.Outlets) > 0,
	}, tenants, &cat.Counters)
	cat.Objects.Policies.WriteBehind = cfg.WriteBehind
	cat.Objects.Policies.SendAll = slices.ContainsFunc(cfg.Outlets, func(o Outlet) bool { return o.All })
	cat.Profiles.Store(&[]*objects.Profile{})
	cat.Changed.L = &cat.Mu
	return cat, nil
}

// ErrClosed is the error of calls after the store was closed.
var ErrClosed = fmt.Errorf("the store is closed: %w", tier.ErrUnavailable)

// NewLeaseID returns an id from the sequence of leases. No id is returned twice.
func (cat *Catalog) NewLeaseID() tier.LeaseID { return tier.LeaseID(cat.LeaseIDs.Add(1)) }

// Overdue is what has a deadline in Set.Deadlines and ends at it, other than objects and pins.
type Overdue interface {
	// OverdueLocked ends it.
	OverdueLocked()
}

// Client is one client of the store, as far as all parts know it. Guarded by the store's
// lock, except the name.
type Client struct {
	Name   string
	closed bool
	Ended  chan struct{} // closed when closed is set
}

// OpenLocked returns an error if the store or the client's session is closed. Every call of
// a session checks it first.
func (cat *Catalog) OpenLocked(c *Client) error {
	if cat.Closed {
		return ErrClosed
	}
	if c.closed {
		return fmt.Errorf("session %q is closed: %w", c.Name, tier.ErrGone)
	}
	return nil
}

// CloseLocked makes new calls fail and wakes the calls that wait for promotions.
func (c *Client) CloseLocked() {
	if !c.closed {
		c.closed = true
		close(c.Ended)
	}
}

// Scope returns the profile and tenant that a query names.
func (cat *Catalog) Scope(p tier.ProfileID, t tier.TenantID, rank int) (*objects.Profile, *objects.Tenant, error) {
	ps, err := cat.Profile(p)
	if err != nil {
		return nil, nil, err
	}
	if err := ps.CheckRank(rank); err != nil {
		return nil, nil, err
	}
	tn, err := cat.tenant(t)
	return ps, tn, err
}

func (cat *Catalog) tenant(id tier.TenantID) (*objects.Tenant, error) {
	t, ok := cat.Objects.Tenants[id]
	if !ok {
		return nil, fmt.Errorf("tenant %d is not configured: %w", id, tier.ErrInvalid)
	}
	return t, nil
}

// Profile returns a registered profile. It takes no lock.
func (cat *Catalog) Profile(id tier.ProfileID) (*objects.Profile, error) {
	known := *cat.Profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *objects.Profile, id tier.ProfileID) int { return cmp.Compare(ps.ID, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
	}
	return known[at], nil
}

// Registered returns the profile with a fingerprint, nil if there is none. It takes no
// lock.
func (cat *Catalog) Registered(f profile.Fingerprint) *objects.Profile {
	for _, ps := range *cat.Profiles.Load() {
		if ps.Fingerprint() == f {
			return ps
		}
	}
	return nil
}

// Of returns the counters of a profile's objects. The caller holds the lock.
func (cat *Catalog) Of(p *objects.Profile) *stats.Counters { return cat.Objects.Records.Of(p) }

// InTurns calls f under the lock and repeats the call while f returns ErrAgain. Other
// goroutines can take the lock between two calls.
func (cat *Catalog) InTurns(f func() error) error {
	t := cat.Mu.Turns()
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
		cat.Launch() // an eviction may have to wait for a write
	}
}

// wakeIdleCleaner wakes the cleaner and the sender if they wait, because a pool has become
// short of free bytes.
func (cat *Catalog) wakeIdleCleaner() {
	if cat.CleanerIdle || cat.SenderIdle {
		cat.Changed.Broadcast()
	}
}

// SweptLocked begins the next sweep, after which work that was refused is tried again.
func (cat *Catalog) SweptLocked() {
	cat.Sweeps++
	cat.wakeIdleCleaner()
}

// WakeCleaner wakes the cleaner and the sender, so that they notice that their context has ended.
func (cat *Catalog) WakeCleaner() {
	cat.Mu.Lock()
	defer cat.Mu.Unlock()
	cat.Changed.Broadcast()
}

// HoldRows is the maximum number of rows that one critical section handles. It bounds how long a
// lookup waits for the lock, however much a client, an operator or an eviction asks for at once.
const HoldRows = 16

// ChainPagesLocked returns the bytes of pages that an entry of the lower tier and its
// ancestors take in memory.
func (cat *Catalog) ChainPagesLocked(e *tier.Entry, p *objects.Profile, t *objects.Tenant) (bytes int64) {
	node := *e
	for range cat.Config.MaxChain {
		bytes += cat.Objects.Memory.PagesOf(p.NodeParts(node.Kind, node.End-node.Begin).Bytes) * int64(p.Ranks)
		if node.Parent == (tier.Name{}) {
			return bytes
		}
		up := node.Parent
		var held bool
		if node, held = cat.Objects.Below.Lookup(up, p, t); !held {
			for o := cat.Objects.Names.Find(up, p, t); o != nil; o = o.Parent {
				bytes += o.PageBytes
			}
			return bytes
		}
	}
	return bytes
}

// PlanTook updates the measured costs of composing, rotating and replaying with the time
// that a plan took on one rank. The other ranks do the same work in parallel.
func (cat *Catalog) PlanTook(sc plan.Scope, t plan.Timing) {
	p, err := cat.Profile(sc.Profile)
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
