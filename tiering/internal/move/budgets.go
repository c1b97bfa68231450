package move

import (
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Limits is the part of a store whose budgets and quotas can change while it runs. The
// arena has a fixed size. Its pages belong to no pool: segments and checkpoints only have
// accounts, with a budget each. A budget that shrinks does so at once. The excess is
// evicted now, or by later sweeps if clients read it or it must be written first. A budget
// that grows gets bytes as the other pool gives them up.
//
// Invariant: the sum of max(budget, used bytes) over both pools does not exceed the arena.
type Limits struct {
	cat     *catalog.Catalog
	writes  *Writes
	evictor *Evictor

	wanted [objects.PoolCount]int64        // target budgets; guarded by the store's lock
	now    [objects.PoolCount]atomic.Int64 // current budgets, for readers without the lock
}

func (bud *Limits) open() {
	for i, p := range bud.cat.Objects.Pools {
		bud.wanted[i] = p.Budget
		bud.now[i].Store(p.Budget)
	}
}

// BudgetOf returns a pool's budget without the lock.
func (bud *Limits) BudgetOf(p *objects.Pool) int64 {
	if p.Device != nil {
		return p.Budget // fixed
	}
	return bud.now[p.Number].Load()
}

// Budgets are the limits that can be changed while a store runs.
type Budgets struct {
	Public, Private int64
	Quotas          map[tier.TenantID]int64 // bytes; 0 = none
}

// Targets returns the target values.
func (bud *Limits) Targets() Budgets {
	bud.cat.Mu.Lock()
	defer bud.cat.Mu.Unlock()
	b := Budgets{bud.wanted[objects.PublicPool], bud.wanted[objects.PrivatePool], map[tier.TenantID]int64{}}
	for id, t := range bud.cat.Objects.Tenants {
		b.Quotas[id] = t.WantedQuota()
	}
	return b
}

// Check returns the error that Set would return for b.
func (bud *Limits) Check(b Budgets) error {
	bud.cat.Mu.Lock()
	defer bud.cat.Mu.Unlock()
	return bud.checkBudgetsLocked(&b)
}

func (bud *Limits) checkBudgetsLocked(b *Budgets) error {
	page := int64(bud.cat.Config.PageBytes)
	if b.Public < page || b.Private < page {
		return fmt.Errorf("pools of %d and %d bytes, each has at least a page of %d: %w", b.Public, b.Private, page, tier.ErrInvalid)
	}
	if total := bud.ArenaBytes(); b.Public > total || b.Private > total-b.Public {
		return fmt.Errorf("pools of %d and %d bytes, the arena has %d for the life of the daemon: %w", b.Public, b.Private, total, tier.ErrUnavailable)
	}
	for id, quota := range b.Quotas {
		if bud.cat.Objects.Tenants[id] == nil || quota < 0 {
			return fmt.Errorf("quota of %d bytes for tenant %d: %w", quota, id, tier.ErrInvalid)
		}
	}
	return nil
}

// ArenaBytes returns the size of both pools together.
func (bud *Limits) ArenaBytes() int64 {
	page := int64(bud.cat.Config.PageBytes)
	return bud.cat.Config.PublicBytes/page*page + bud.cat.Config.PrivateBytes/page*page
}

// Set changes budgets and quotas, see Store.SetBudgets.
func (bud *Limits) Set(b Budgets) error {
	page := int64(bud.cat.Config.PageBytes)
	bud.cat.Mu.Lock()
	if err := bud.checkBudgetsLocked(&b); err != nil {
		bud.cat.Mu.Unlock()
		return err
	}
	bud.wanted = [objects.PoolCount]int64{objects.PublicPool: b.Public / page * page, objects.PrivatePool: b.Private / page * page}
	for id, quota := range b.Quotas {
		bud.cat.Objects.Quotas.Set(bud.cat.Objects.Tenants[id], quota)
	}
	bud.cat.Mu.Unlock()
	bud.Settle()
	return nil
}

// Settle moves budgets towards their targets and evicts as much of the excess as
// can be evicted now.
func (bud *Limits) Settle() {
	_ = bud.cat.InTurns(bud.settleLocked)
	bud.cat.Launch()
}

// settleLocked does one step of Settle. ErrAgain means that more can be done.
func (bud *Limits) settleLocked() error {
	for _, p := range bud.cat.Objects.Pools {
		bud.setBudgetLocked(p)
	}
	n := 0
	for _, p := range bud.cat.Objects.Pools {
		for over := p.StayingBytes() - p.Budget; over > 0 && p.Used > p.Pinned; over = p.StayingBytes() - p.Budget {
			if n++; n > objects.EvictRows {
				return objects.ErrAgain
			}
			way := ForRoom
			if bud.writes.WritesHangLocked() {
				way = forRoomWithoutDemotion
			}
			bud.evictor.EvictLocked(p.Evict, way, &shortage{pool: p, pages: over})
		}
	}
	for _, t := range bud.cat.Objects.Tenants {
		if bud.cat.Objects.Quotas.CatchUp(t) {
			return objects.ErrAgain
		}
		if err := bud.settleQuotaLocked(t); err != nil {
			return err
		}
	}
	for _, p := range bud.cat.Objects.Pools {
		bud.setBudgetLocked(p)
	}
	return nil
}

// setBudgetLocked moves a pool's budget as far towards its target as the other pool
// allows.
func (bud *Limits) setBudgetLocked(p *objects.Pool) {
	other := bud.cat.Objects.Pools[objects.PublicPool+objects.PrivatePool-p.Number]
	p.Budget = min(bud.wanted[p.Number], bud.ArenaBytes()-max(other.Budget, other.Used))
	bud.now[p.Number].Store(p.Budget)
}

// settleQuotaLocked evicts the bytes that a tenant has over its quota: first from HBM, then
// from the lower tier, and last from memory, as MakeRoomLocked does.
func (bud *Limits) settleQuotaLocked(t *objects.Tenant) error {
	over := func() int64 { return bud.cat.Objects.Quotas.Over(t, 0) - t.Leaving }
	if over() <= 0 {
		return nil
	}
	if _, more := bud.cat.Objects.HBM.Yield(t, over()); more {
		return objects.ErrAgain
	}
	if below := min(over(), bud.evictor.Trimmable(t, 0)); below > 0 && bud.evictor.trimBelowLocked(t, below, nil) {
		return objects.ErrAgain
	}
	evictable := func() bool { // in memory
		return t.Used[objects.PublicPool]+t.Used[objects.PrivatePool] > t.Pinned-t.PinnedAbove
	}
	for n := 0; over() > 0 && evictable(); n++ {
		if n == objects.EvictRows {
			return objects.ErrAgain
		}
		bud.evictor.EvictLocked(t.Evict, forQuota, &shortage{tenant: t, charge: over()})
	}
	return nil
}
