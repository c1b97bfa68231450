package disk

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// write is an entry on its way to the disk. It is guarded by the tier's lock; once
// taken from the queue, runs and object belong to the worker.
type write struct {
	entry   *entry
	object  *tier.Object // of who started it
	bytes   int64        // of the queue
	answers int          // tickets that are neither started nor canceled
	started bool
	waiters []waiter

	manifest []byte // as stored; from the worker to the committer
}

// waiter is somebody who is told when an entry has reached a level.
type waiter struct {
	entry *entry
	level tier.Level
	done  func(tier.Level, error)
}

// ticket is the store's answer of Admit.
type ticket struct {
	tier   *Tier
	entry  *entry
	object *tier.Object
}

// Admit implements tiering.Tier. It looks at memory only; what has to leave for
// the object is forgotten now, and its space is waited for by the worker that
// writes.
func (t *Tier) Admit(o *tier.Object, room int64) (tier.Write, error) {
	now := t.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e, err := t.admitLocked(o, room)
	if err != nil {
		t.counters.refused(err)
		return nil, err
	}
	if e.used.IsZero() {
		e.used = now
	}
	if e.write != nil {
		e.write.answers++
	}
	return &ticket{t, e, o}, nil
}

func (t *Tier) admitLocked(o *tier.Object, room int64) (*entry, error) {
	name := tier.Name{Kind: o.Kind, Key: o.Key}
	if t.state > StateFull || t.refusing || t.closing {
		return nil, fmt.Errorf("disk: %s: %w", t.state, tier.ErrUnavailable)
	}
	if _, hung := t.stalledLocked(); hung > 0 {
		return nil, fmt.Errorf("disk: a write has not returned for %v: %w", hung, tier.ErrUnavailable)
	}
	e := t.index[name]
	if e != nil && e.suspect {
		// It may have lost its bytes. They are at hand now, so it is written anew.
		t.unsureLocked(e)
		e = nil
	}
	if e != nil {
		t.counters.Joined++
		return e, nil
	}
	e, parent, err := t.prepareLocked(o)
	if err != nil {
		return nil, err
	}
	if t.queued > 0 && (t.queuedBytes+e.bytes > t.cfg.QueueBytes || t.queued >= t.cfg.QueueLen) {
		return nil, fmt.Errorf("disk: %d objects of %d bytes are to be written: %w", t.queued, t.queuedBytes, tier.ErrBusy)
	}
	// Held, so that what it extends cannot be what makes room for it.
	e.pins = 1
	if parent != nil {
		t.pin(parent, 1)
	}
	err = t.makeRoomLocked(e, room)
	if parent != nil {
		t.pin(parent, -1)
	}
	if err != nil {
		return nil, err
	}
	t.link(e, parent)
	if parent != nil {
		t.pin(parent, 1)
	}
	e.write = &write{entry: e, bytes: e.bytes}
	t.queued++
	t.queuedBytes += e.bytes
	t.counters.Admitted++
	return e, nil
}

// prepareLocked makes the entry of an object, not linked yet.
func (t *Tier) prepareLocked(o *tier.Object) (e, parent *entry, err error) {
	owner := t.owners[o.Tenant]
	if owner == nil {
		return nil, nil, fmt.Errorf("disk: tenant %d is not known: %w", o.Tenant, tier.ErrInvalid)
	}
	if o.Parent != (tier.Name{}) {
		if parent = t.index[o.Parent]; parent == nil {
			return nil, nil, fmt.Errorf("disk: %x extends %x, which is not here: %w", o.Key[:8], o.Parent.Key[:8], tier.ErrInvalid)
		}
		if parent.suspect {
			return nil, nil, fmt.Errorf("disk: %x extends %x, which was not read yet: %w", o.Key[:8], o.Parent.Key[:8], tier.ErrBusy)
		}
	}
	if len(o.Shares) == 0 {
		return nil, nil, fmt.Errorf("disk: %x has no bytes: %w", o.Key[:8], tier.ErrInvalid)
	}
	e = &entry{
		Name: tier.Name{Kind: o.Kind, Key: o.Key}, owner: owner, pool: t.pools[poolOf(o.Kind)], model: t.modelLocked(o.Profile),
		spec: o.Spec, begin: o.Begin, end: o.End, parentName: o.Parent, created: o.Created,
		ranks: len(o.Shares), rankBytes: o.Shares[0].Ref.Len(),
	}
	e.bytes = t.round(t.headerBound(o) + extent.PayloadBytes(e.ranks, e.rankBytes))
	return e, parent, nil
}

// makeRoomLocked evicts until an entry fits its tenant's room, its pool's budget
// and the space there is or can be made. Nothing leaves in vain.
func (t *Tier) makeRoomLocked(e *entry, room int64) error {
	p, owner := e.pool, e.owner
	quota := owner.total() + e.bytes - room
	over := func() int64 { return max(p.used+e.bytes-p.budget, t.usedLocked()+e.bytes-t.spaceLimitLocked()) }
	if quota > owner.total()-owner.pinned {
		return fmt.Errorf("disk: %d bytes for tenant %q, which holds %d of at most %d: %w", e.bytes, owner.Name, owner.total(), room, tier.ErrQuota)
	}
	if over() > p.used-p.pinned {
		return fmt.Errorf("disk: %d bytes in the %s pool, %d of %d used: %w", e.bytes, p.name, p.used, p.budget, tier.ErrFull)
	}
	if quota > 0 {
		t.trimLocked(owner, quota)
	}
	for over() > 0 {
		v := t.victim(p)
		if v == nil {
			return fmt.Errorf("disk: %d bytes in the %s pool, %d of %d used: %w", e.bytes, p.name, p.used, p.budget, tier.ErrFull)
		}
		t.evictLocked(v, &t.counters.EvictedRoom)
	}
	return nil
}

// trimLocked evicts a tenant's least valuable entries.
func (t *Tier) trimLocked(a *account, bytes int64) (freed int64) {
	for freed < bytes {
		id, ok := a.evict.Victim(anyID)
		if !ok {
			break
		}
		v := t.ids.Get(id)
		freed += v.bytes
		t.evictLocked(v, &t.counters.EvictedQuota)
	}
	return freed
}

func (t *Tier) evictLocked(e *entry, why *uint64) {
	*why++
	t.counters.EvictedBytes += uint64(e.bytes)
	t.forgetLocked(e)
}

// forgetLocked forgets an entry and those that extend it.
func (t *Tier) forgetLocked(e *entry) {
	_, n := t.forget(e)
	t.counters.LostWithOther += uint64(n - 1)
	for _, e := range t.undone {
		t.counters.WritesDropped++
		t.unqueueLocked(e)
	}
	t.undone = t.undone[:0]
	t.rows.Signal()
}

// Start implements tiering.Write.
func (k *ticket) Start(level tier.Level, done func(tier.Level, error)) {
	t, e := k.tier, k.entry
	w := waiter{e, max(level, tier.LevelLogged), done}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.phase {
	case admitted:
		if t.vol.stopping { // nobody would write it any more
			t.forgetLocked(e)
			t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: closing: %w", tier.ErrUnavailable))
			return
		}
		e.write.answers--
		e.write.waiters = append(e.write.waiters, w)
		if !e.write.started {
			e.write.started, e.write.object = true, k.object
			t.queue = append(t.queue, e.write)
			t.started++
			t.jobs.Signal()
		}
	case live:
		t.settleWaiterLocked(w)
	case forgotten:
		t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left before it was written: %w", e.Key[:8], tier.ErrGone))
	}
}

// settleWaiterLocked answers a waiter of a live entry, or has it wait for a sync.
func (t *Tier) settleWaiterLocked(w waiter) {
	switch e := w.entry; {
	case e.level >= w.level:
		t.answerLocked(w, e.level, nil)
	case t.state > StatePaused:
		t.answerLocked(w, e.level, fmt.Errorf("disk: %x cannot be synced: %w", e.Key[:8], tier.ErrUnavailable))
	default:
		t.raising = append(t.raising, w)
		t.syncs.Signal()
	}
}

// answerLocked calls a waiter back without the lock, as each is promised.
func (t *Tier) answerLocked(w waiter, reached tier.Level, err error) {
	t.answering++
	go func() {
		defer t.answered()
		w.done(reached, err)
	}()
}

func (t *Tier) answered() {
	t.mu.Lock()
	t.answering--
	t.idle.Broadcast()
	t.mu.Unlock()
}

// Cancel implements tiering.Write.
func (k *ticket) Cancel() {
	t, e := k.tier, k.entry
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.phase != admitted {
		return
	}
	e.write.answers--
	if e.write.answers == 0 && !e.write.started {
		t.forgetLocked(e)
	}
}

// unqueueLocked gives back an entry's share of the queue.
func (t *Tier) unqueueLocked(e *entry) {
	if e.write == nil {
		panic("disk: a write ended twice")
	}
	t.queued--
	t.queuedBytes -= e.write.bytes
	if e.write.started {
		if t.started--; t.started == 0 {
			t.idle.Broadcast()
		}
	}
	e.write = nil
}
