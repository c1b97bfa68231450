package tiering

import (
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// budgets is the part of a store whose budgets and quotas can change while it runs. The
// arena has a fixed size. Its pages belong to no pool: segments and checkpoints only have
// accounts, with a budget each. A budget that shrinks does so at once. The excess is
// evicted now, or by later sweeps if clients read it or it must be written first. A budget
// that grows gets bytes as the other pool gives them up.
//
// Invariant: the sum of max(budget, used bytes) over both pools does not exceed the arena.
type budgets struct {
	*catalog
	writes  *writes
	evictor *evictor

	wanted [objects.PoolCount]int64        // target budgets; guarded by the store's lock
	now    [objects.PoolCount]atomic.Int64 // current budgets, for readers without the lock
}

func (bud *budgets) open() {
	for i, p := range bud.objects.Pools {
		bud.wanted[i] = p.Budget
		bud.now[i].Store(p.Budget)
	}
}

// budgetOf returns a pool's budget without the lock.
func (bud *budgets) budgetOf(p *objects.Pool) int64 {
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

// targets returns the target values. The current values of pools and tenants may still
// differ from them.
func (bud *budgets) targets() Budgets {
	bud.mu.Lock()
	defer bud.mu.Unlock()
	b := Budgets{bud.wanted[objects.PublicPool], bud.wanted[objects.PrivatePool], map[tier.TenantID]int64{}}
	for id, t := range bud.objects.Tenants {
		b.Quotas[id] = t.WantedQuota()
	}
	return b
}

// check returns the error that set would return for b. ErrUnavailable means
// that b needs a restart, ErrInvalid that no daemon accepts it.
func (bud *budgets) check(b Budgets) error {
	bud.mu.Lock()
	defer bud.mu.Unlock()
	return bud.checkBudgetsLocked(&b)
}

func (bud *budgets) checkBudgetsLocked(b *Budgets) error {
	page := int64(bud.cfg.PageBytes)
	if b.Public < page || b.Private < page {
		return fmt.Errorf("pools of %d and %d bytes, each has at least a page of %d: %w", b.Public, b.Private, page, tier.ErrInvalid)
	}
	if total := bud.arenaBytes(); b.Public > total || b.Private > total-b.Public {
		return fmt.Errorf("pools of %d and %d bytes, the arena has %d for the life of the daemon: %w", b.Public, b.Private, total, tier.ErrUnavailable)
	}
	for id, quota := range b.Quotas {
		if bud.objects.Tenants[id] == nil || quota < 0 {
			return fmt.Errorf("quota of %d bytes for tenant %d: %w", quota, id, tier.ErrInvalid)
		}
	}
	return nil
}

// arenaBytes returns the size of both pools together.
func (bud *budgets) arenaBytes() int64 {
	page := int64(bud.cfg.PageBytes)
	return bud.cfg.PublicBytes/page*page + bud.cfg.PrivateBytes/page*page
}

// set changes budgets and quotas. Tenants that b.Quotas does not name keep their
// quotas. Eviction of the excess begins at once. For a tenant that had no quota, it begins
// once the tenant's policies know its objects. It returns the same errors as
// check; on an error nothing has changed.
func (bud *budgets) set(b Budgets) error {
	page := int64(bud.cfg.PageBytes)
	bud.mu.Lock()
	if err := bud.checkBudgetsLocked(&b); err != nil {
		bud.mu.Unlock()
		return err
	}
	bud.wanted = [objects.PoolCount]int64{objects.PublicPool: b.Public / page * page, objects.PrivatePool: b.Private / page * page}
	for id, quota := range b.Quotas {
		bud.objects.Quotas.Set(bud.objects.Tenants[id], quota)
	}
	bud.mu.Unlock()
	bud.settle()
	return nil
}

// settle moves budgets towards their targets and evicts as much of the excess as
// can be evicted now.
func (bud *budgets) settle() {
	_ = bud.inTurns(bud.settleLocked)
	bud.launch()
}

// settleLocked does one step of settle. ErrAgain means that more can be done.
func (bud *budgets) settleLocked() error {
	for _, p := range bud.objects.Pools {
		bud.setBudgetLocked(p)
	}
	n := 0
	for _, p := range bud.objects.Pools {
		for over := p.StayingBytes() - p.Budget; over > 0 && p.Used > p.Pinned; over = p.StayingBytes() - p.Budget {
			if n++; n > objects.EvictRows {
				return objects.ErrAgain
			}
			way := forRoom
			if bud.writes.writesHangLocked() {
				way = forRoomWithoutDemotion
			}
			bud.evictor.evictLocked(p.Evict, way, &shortage{pool: p, pages: over})
		}
	}
	for _, t := range bud.objects.Tenants {
		if bud.objects.Quotas.CatchUp(t) {
			return objects.ErrAgain
		}
		if err := bud.settleQuotaLocked(t); err != nil {
			return err
		}
	}
	for _, p := range bud.objects.Pools {
		bud.setBudgetLocked(p)
	}
	return nil
}

// setBudgetLocked moves a pool's budget as far towards its target as the other pool
// allows.
func (bud *budgets) setBudgetLocked(p *objects.Pool) {
	other := bud.objects.Pools[objects.PublicPool+objects.PrivatePool-p.Number]
	p.Budget = min(bud.wanted[p.Number], bud.arenaBytes()-max(other.Budget, other.Used))
	bud.now[p.Number].Store(p.Budget)
}

// settleQuotaLocked evicts the bytes that a tenant has over its quota: first from HBM, then
// from the lower tier, and last from memory, as makeRoomLocked does.
func (bud *budgets) settleQuotaLocked(t *objects.Tenant) error {
	over := func() int64 { return bud.objects.Quotas.Over(t, 0) - t.Leaving }
	if over() <= 0 {
		return nil
	}
	if _, more := bud.objects.HBM.Yield(t, over()); more {
		return objects.ErrAgain
	}
	if below := min(over(), bud.evictor.trimmable(t, 0)); below > 0 && bud.evictor.trimBelowLocked(t, below, nil) {
		return objects.ErrAgain
	}
	evictable := func() bool { // in memory
		return t.Used[objects.PublicPool]+t.Used[objects.PrivatePool] > t.Pinned-t.PinnedAbove
	}
	for n := 0; over() > 0 && evictable(); n++ {
		if n == objects.EvictRows {
			return objects.ErrAgain
		}
		bud.evictor.evictLocked(t.Evict, forQuota, &shortage{tenant: t, charge: over()})
	}
	return nil
}
