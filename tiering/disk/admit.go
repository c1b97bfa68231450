package disk

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// queue holds the writes that are admitted and not ended.
type queue struct {
	waiting []*write            // wait for a worker, in the order of arrival
	ready   []*write            // their bytes are written and wait for their row; parents come first
	all     map[*write]struct{} // all writes in flight, including those of forgotten entries
	started int                 // number of writes in all that are started
	bytes   int64
}

// A write describes the writing of one entry. It begins with Admit and ends when the
// entry's row is written or when the writing fails. The tier's lock guards its fields,
// except object, which belongs to the worker that writes the entry.
type write struct {
	entry     *entry
	object    *tier.Object // from the ticket whose Start began the write
	bytes     int64        // its share of queue.bytes
	tickets   int          // number of tickets that were neither started nor canceled
	unroomed  bool         // Admit has left some evictions for its room to Start
	owed      int64        // bytes that its tenant still has to evict for it
	waiters   []waiter
	ready     bool
	followers []*write // writes of child entries: written, and waiting until this write is ready

	manifest []byte // encoded manifest as stored; passed from the worker to the committer
}

// waiter is a callback for when an entry reaches a level, or cannot.
type waiter struct {
	entry *entry
	level tier.Level
	done  func(tier.Level, error)
}

// ticket is the tier.Write that Admit returns.
type ticket struct {
	tier   *admission
	entry  *entry
	object *tier.Object
}

// admission decides which objects are written, and queues them.
type admission struct {
	*core
	*space
}

// Admit implements tier.Tier. It reads memory only. It evicts the entries that have to
// make room for the object, or leaves some of them to Start if they are many. The worker
// that writes the object waits until their space is free.
func (t *admission) Admit(o *tier.Object, room int64) (tier.Write, error) {
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
		e.write.tickets++
	}
	return &ticket{t, e, o}, nil
}

func (t *admission) admitLocked(o *tier.Object, room int64) (*entry, error) {
	if !t.health.state.writable() || t.life != serving {
		return nil, fmt.Errorf("disk: %s: %w", t.health.state, tier.ErrUnavailable)
	}
	if _, hung := t.stalledLocked(); hung > 0 {
		return nil, fmt.Errorf("disk: a write has not returned for %v: %w", hung, tier.ErrUnavailable)
	}
	e := t.index[tier.Name{Kind: o.Kind, Key: o.Key}]
	d := t.mount.dormant[o.Profile.Fingerprint()]
	if d != nil {
		d.offered = o.Profile
	}
	if d != nil || e != nil && e.phase == dormant {
		return nil, fmt.Errorf("disk: the file of the profile of %x is to be written anew first: %w", o.Key[:8], tier.ErrUnavailable)
	}
	if e != nil && e.phase == suspect {
		// The bytes on disk may be lost. The object has them, so it is written again.
		if t.forgetTreeLocked(e) {
			return nil, fmt.Errorf("disk: %x: those that extend what is there are being forgotten: %w", o.Key[:8], tier.ErrBusy)
		}
		t.counters.LostUnsynced++
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
	if q := &t.queue; len(q.all) > 0 && (q.bytes+e.bytes > t.cfg.QueueBytes || len(q.all) >= t.cfg.QueueLen) {
		return nil, fmt.Errorf("disk: %d objects of %d bytes are to be written: %w", len(q.all), q.bytes, tier.ErrBusy)
	}
	// The parent is pinned, so that makeRoomLocked evicts neither it nor its ancestors.
	e.pins = 1
	if parent != nil {
		t.pin(parent, 1)
	}
	e.write = &write{entry: e, bytes: e.bytes}
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
	e.owner.owed += e.write.owed
	t.queue.all[e.write] = struct{}{}
	t.queue.bytes += e.bytes
	t.counters.Admitted++
	return e, nil
}

// prepareLocked creates the entry of an object without linking it, and returns its parent too.
func (t *admission) prepareLocked(o *tier.Object) (e, parent *entry, err error) {
	owner := t.owners[o.Tenant]
	if owner == nil {
		return nil, nil, fmt.Errorf("disk: tenant %d is not known: %w", o.Tenant, tier.ErrInvalid)
	}
	if o.Parent != (tier.Name{}) {
		if parent = t.index[o.Parent]; parent == nil {
			return nil, nil, fmt.Errorf("disk: %x extends %x, which is not here: %w", o.Key[:8], o.Parent.Key[:8], tier.ErrInvalid)
		}
		if parent.unproven() {
			return nil, nil, fmt.Errorf("disk: %x extends %x, which was not read yet: %w", o.Key[:8], o.Parent.Key[:8], tier.ErrBusy)
		}
	}
	if len(o.Shares) == 0 {
		return nil, nil, fmt.Errorf("disk: %x has no bytes: %w", o.Key[:8], tier.ErrInvalid)
	}
	e = &entry{
		Row: catalog.Row{
			Name: extent.Name{Kind: uint8(o.Kind), Key: o.Key}, Level: uint8(tier.LevelLogged), Tenant: owner.number,
			Fingerprint: o.Profile.Fingerprint(), Spec: o.Spec, Hash: o.Hash, Packed: o.Packed, Begin: o.Begin, End: o.End, Parent: extentName(o.Parent),
			Ranks: len(o.Shares), RankBytes: o.Shares[0].Ref.Len(), Created: o.Created.UnixNano(),
		},
		owner: owner, pool: t.pools[poolOf(o.Kind)], model: t.modelLocked(o.Profile),
	}
	header := t.coder.HeaderBound(o, owner.Name)
	e.HeaderBytes, e.bytes = int(header), t.round(header+extent.PayloadBytes(e.Ranks, e.RankBytes))
	return e, parent, nil
}

// makeRoomLocked evicts entries until e fits the quota of its tenant, which is room bytes,
// the budget of its pool, and the space that exists or can be added. If all evictable
// entries would not suffice, it evicts nothing and returns an error. After rowsAtOnce
// evictions it leaves the remaining ones to Start. Until Start has done them, the tenant
// owes bytes, or the pool is over its limit.
func (t *admission) makeRoomLocked(e *entry, room int64) error {
	p, owner := e.pool, e.owner
	held := owner.total() - owner.owed
	quota := held + e.charge() - room
	if quota > 0 && quota > held-owner.pinned {
		return t.overQuotaLocked(e, room)
	}
	if t.overLocked(p, e.bytes) > p.used-p.pinned {
		return t.fullLocked(e)
	}
	for rows := 0; quota > 0 || t.overLocked(p, e.bytes) > 0; rows++ {
		switch {
		case rows == rowsAtOnce:
			e.write.unroomed, e.write.owed = true, max(quota, 0)
			return nil
		case quota > 0:
			freed := t.evictForQuotaLocked(owner, anyID)
			if quota -= freed; freed == 0 {
				return t.overQuotaLocked(e, room)
			}
		case !t.evictForRoomLocked(p):
			return t.fullLocked(e)
		}
	}
	return nil
}

// overLocked returns by how many bytes a pool would exceed its limits if some bytes were
// added.
func (t *space) overLocked(p *pool, bytes int64) int64 {
	return max(p.used+bytes-p.budget, t.used()+bytes-t.spaceLimitLocked())
}

func (t *space) overQuotaLocked(e *entry, room int64) error {
	return fmt.Errorf("disk: %d bytes for tenant %q, which holds %d of at most %d: %w", e.charge(), e.owner.Name, e.owner.total(), room, tier.ErrQuota)
}

func (t *space) fullLocked(e *entry) error {
	return fmt.Errorf("disk: %d bytes in the %s pool, %d of %d used: %w", e.bytes, e.pool.name, e.pool.used, e.pool.budget, tier.ErrFull)
}

// evictForQuotaLocked evicts the least valuable entry of a tenant among those for which the
// function may returns true. It returns the freed charge in bytes; 0 means that no such
// entry is evictable.
func (t *space) evictForQuotaLocked(a *account, may func(policy.ID) bool) (freed int64) {
	id, ok := a.evict.Victim(may)
	if !ok {
		return 0
	}
	e := t.ids.Get(id)
	freed = e.charge()
	t.counters.EvictedQuota++
	t.evictLocked(e, true)
	return freed
}

// evictForRoomLocked evicts a pool's least valuable entry; false = no entry is evictable.
func (t *space) evictForRoomLocked(p *pool) bool {
	v := t.victim(p)
	if v != nil {
		t.counters.EvictedRoom++
		t.evictLocked(v, false)
	}
	return v != nil
}

func (t *space) evictLocked(e *entry, quota bool) {
	t.counters.EvictedBytes += uint64(e.bytes)
	if t.cfg.Evicted != nil {
		view := e.view()
		t.cfg.Evicted(&view, e.model.name, quota)
	}
	t.forgetLocked(e)
}

// Start implements tier.Write.
func (k *ticket) Start(level tier.Level, done func(tier.Level, error)) {
	t, e := k.tier, k.entry
	t.mu.Lock()
	w, m := e.write, t.mount
	left := t.startLocked(k, waiter{e, max(level, tier.LevelLogged), done})
	t.mu.Unlock()
	var err error
	turns := t.mu.Turns()
	for left && err == nil {
		turns.Lock()
		left, err = t.finishRoomLocked(w)
		turns.Unlock()
	}
	if err != nil {
		t.failWrite(m, w, err)
	}
}

// startLocked adds a waiter, or answers it if nothing is left to write. It reports
// whether the caller has to queue the write with finishRoomLocked.
func (t *admission) startLocked(k *ticket, w waiter) (toQueue bool) {
	e := k.entry
	switch {
	case e.forgotten():
		t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left before it was written: %w", e.Key[:8], tier.ErrGone))
	case e.phase.live():
		t.awaitLevelLocked(w)
	default:
		e.write.tickets--
		e.write.waiters = append(e.write.waiters, w)
		if e.phase != admitted {
			return false
		}
		e.write.object = k.object
		t.become(e, starting)
		t.queue.started++
		return true
	}
	return false
}

// finishRoomLocked does some of the evictions that Admit has left to Start, and queues the
// write when there is enough room. The result left is true if more entries have to be
// evicted.
func (t *admission) finishRoomLocked(w *write) (left bool, err error) {
	e := w.entry
	if e.write != w { // the directory was closed
		return false, nil
	}
	if err := t.writableLocked(e); err != nil {
		return false, err
	}
	if t.mount.stopping {
		return false, fmt.Errorf("disk: closing: %w", tier.ErrUnavailable)
	}
	for rows := 0; w.unroomed; rows++ {
		switch {
		case rows == rowsAtOnce:
			return true, nil
		case w.owed > 0:
			freed := t.evictForQuotaLocked(e.owner, anyID)
			if freed == 0 {
				return false, fmt.Errorf("disk: %d bytes for tenant %q, which has no more to give up: %w", e.charge(), e.owner.Name, tier.ErrQuota)
			}
			t.payLocked(w, freed)
		case t.overLocked(e.pool, 0) <= 0:
			w.unroomed = false
		case !t.evictForRoomLocked(e.pool):
			return false, t.fullLocked(e)
		}
	}
	t.become(e, queued)
	t.queue.waiting = append(t.queue.waiting, w)
	t.jobs.Signal()
	return false, nil
}

// payLocked subtracts bytes from those that a write and its tenant owe.
func (t *core) payLocked(w *write, bytes int64) {
	bytes = min(bytes, w.owed)
	w.owed -= bytes
	w.entry.owner.owed -= bytes
}

// Cancel implements tier.Write.
func (k *ticket) Cancel() {
	t, e := k.tier, k.entry
	t.mu.Lock()
	left := false
	if !e.forgotten() && e.phase.pending() {
		e.write.tickets--
		left = e.write.tickets == 0 && e.phase == admitted && t.forgetTreeLocked(e)
	}
	t.mu.Unlock()
	if left {
		t.forgetTree(e)
	}
}

// unqueueLocked removes an entry's write from the queue.
func (t *core) unqueueLocked(e *entry) {
	w := e.write
	if w == nil {
		panic("disk: a write ended twice")
	}
	t.payLocked(w, w.owed)
	delete(t.queue.all, w)
	t.queue.bytes -= w.bytes
	if w.object != nil {
		if t.queue.started--; t.queue.started == 0 {
			t.idle.Broadcast()
		}
	}
	e.write = nil
}
