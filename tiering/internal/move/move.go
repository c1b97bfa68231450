package move

import (
	"context"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Mover has the parts of a store that move objects between tiers and make room for them. A
// part uses only parts above it. Through functions, a remote lookup passes what it has found to
// promotions, and the end of a write or offload makes promotions that wait for memory try again.
type Mover struct {
	cat        *catalog.Catalog
	Remote     *Remote     // knows what is cached outside this node
	Writes     *Writes     // writes objects to the lower tier
	Offloads   *Offloads   // sends copies to outlets
	Evictor    *Evictor    // makes room
	Limits     *Limits     // changes budgets and quotas
	Promotions *Promotions // reads objects into memory
}

// New connects the parts and creates their engines. The parameter memory copies bytes in
// memory.
func New(c *catalog.Catalog, memory *plan.Device) *Mover {
	m := &Mover{cat: c, Remote: &Remote{cat: c}}
	m.Writes = &Writes{cat: c, remote: m.Remote}
	m.Offloads = &Offloads{cat: c, remote: m.Remote}
	m.Evictor = &Evictor{cat: c, remote: m.Remote, writes: m.Writes, offloads: m.Offloads}
	m.Limits = &Limits{cat: c, writes: m.Writes, evictor: m.Evictor}
	m.Promotions = &Promotions{cat: c, remote: m.Remote, evictor: m.Evictor, memory: memory}
	m.Remote.promote = func(w Wanted) { m.Promotions.PromoteLocked(w) }
	m.Remote.coming = func(n tier.Name) bool { return m.Promotions.PromotionLocked(n) != nil }
	m.Writes.freed, m.Offloads.freed = m.Promotions.kickLocked, m.Promotions.kickLocked
	c.Launch = m.launch
	if c.Config.Lower != nil {
		m.Writes.open()
	}
	if c.Config.Lower != nil || c.Config.Remote != nil {
		m.Promotions.open()
	}
	if c.Config.Remote != nil {
		m.Remote.open()
	}
	if len(c.Config.Outlets) > 0 {
		m.Offloads.open()
	}
	m.Limits.open()
	return m
}

// Run cleans and sends copies ahead until ctx ends.
func (m *Mover) Run(ctx context.Context) {
	var workers sync.WaitGroup
	wake := context.AfterFunc(ctx, m.cat.WakeCleaner)
	defer wake()
	if m.Writes.Engine != nil {
		workers.Go(func() { m.Writes.clean(ctx) })
	}
	if m.Offloads.engine != nil {
		workers.Go(func() { m.Offloads.sendAhead(ctx) })
	}
	workers.Wait()
}

// Transfers has the methods of a transfer engine whose workers the store runs.
type Transfers interface {
	Work(ctx context.Context, lane int)
	Resume()
	Stop(err error)
}

// WithTransfersLocked calls f for each lane of each engine whose workers the store runs, with
// the lane's number of workers.
func (m *Mover) WithTransfersLocked(f func(e Transfers, lane, workers int)) {
	if m.Promotions.Engine != nil {
		f(m.Promotions.Engine, LaneBelow, m.cat.Config.MaxPromotions)
	}
	if m.Remote.Engine != nil {
		f(m.Promotions.Engine, LaneBeyond, m.cat.Config.MaxFetches)
		f(m.Remote.Engine, 0, m.cat.Config.MaxFinds)
	}
}

// launch starts, at the tiers, transfers that were begun under the lock.
func (m *Mover) launch() {
	if m.Writes.Engine != nil {
		m.Writes.Engine.Launch()
	}
	if m.Offloads.engine != nil {
		m.Offloads.engine.Launch()
	}
	m.Remote.closeDiscarded()
}

// Sweep does the periodic work.
func (m *Mover) Sweep(now time.Time) {
	m.sweepLower()
	m.Limits.Settle()
	m.Remote.sweepBeyond(now)
}

// sweepLower does the part of a sweep that concerns the lower tier and the outlets: it brings
// tenants back under their quotas, and retries refused transfers. A tenant can be over its
// quota if the tier opened late, or if its entries were written under a larger quota or
// counted in another way.
func (m *Mover) sweepLower() {
	if m.cat.Config.Lower != nil {
		for _, t := range m.cat.Objects.Tenants {
			_ = m.cat.InTurns(func() error { return m.Evictor.TrimTenantLocked(t) })
		}
	}
	if m.Writes.Engine != nil || m.Offloads.engine != nil {
		m.cat.Mu.Lock()
		m.Writes.resumeLocked()
		if m.Writes.Engine != nil {
			m.Promotions.kickLocked()
		}
		m.Offloads.kickLocked()
		m.cat.SweptLocked()
		m.cat.Mu.Unlock()
	}
	m.cat.Launch()
}

// Close ends all transfers of a closed store and waits for operations that still touch memory.
func (m *Mover) Close() {
	for _, e := range [...]*transfer.Engine[*objects.Object]{m.Writes.Engine, m.Offloads.engine} {
		if e == nil {
			continue
		}
		_ = m.cat.InTurns(func() error { // parked writes end, since the store is closed
			if e.Kick(); e.Parked() > 0 {
				return objects.ErrAgain
			}
			return nil
		})
	}
	m.launch()
	m.cat.Running.Wait()
	m.Remote.closeBeyond()
}

// CountersLocked sets the counters of the transfer engines.
func (m *Mover) CountersLocked(c *stats.Counters) {
	if m.Promotions.Engine != nil {
		stats := m.Promotions.Engine.Stats(LaneBelow)
		c.Promotions, c.PromotionsBusy, c.Promoting = stats.Ended, stats.Busy, uint64(m.Promotions.Engine.Len(LaneBelow))
	}
	if m.Remote.Engine != nil {
		finds := m.Remote.Engine.Stats(0)
		c.Beyond.Finds, c.Beyond.FindsBusy, c.Beyond.Finding = finds.Ended, finds.Busy, uint64(m.Remote.Engine.Len(0))
		c.Beyond.Fetches, c.Beyond.Fetching = m.Promotions.Engine.Stats(LaneBeyond).Ended, uint64(m.Promotions.Engine.Len(LaneBeyond))
	}
}
