package disk

import (
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// account counts the charged bytes (entry.charge) that one tenant uses. A tenant of the
// catalogue that is not configured now also has an account, with id 0.
type account struct {
	Tenant
	number uint32 // in the catalogue
	used   [poolCount]int64
	pinned int64
	owed   int64 // part of used that Start will evict for writes already counted
	evict  policy.Eviction
}

func (a *account) total() int64 { return a.used[public] + a.used[private] }

// The pools, by number.
const (
	public = iota
	private
	poolCount
)

// pool is a budget and the entries that share it. Its policies track the evictable
// entries: those that have a row, have no children and are not being read. Foreign
// entries, which belong to tenants that are not configured, are evicted first.
type pool struct {
	name    string
	number  int
	budget  int64
	used    int64 // by entries in flight, dormant and live
	pinned  int64 // part of used: by entries with pins
	entries int
	evict   policy.Eviction
	foreign policy.Eviction
	closed  bool // the directory was closed, and all entries of the pool are forgotten
}

func poolOf(kind tier.CheckpointKind) int {
	if kind == 0 {
		return public
	}
	return private
}

// table holds all entries of an open directory. It has no lock: callers of its methods
// hold the tier's lock, unless the table is not shared yet. A new table is created when
// the directory is opened again.
//
// Invariant: index holds the entries in flight and those that have a row.
type table struct {
	index    map[tier.Name]*entry
	ids      policy.Table[entry]
	owners   map[tier.TenantID]*account
	accounts []*account // of all names, also those with id 0
	pools    [poolCount]*pool
	leaving  int64 // bytes of forgotten entries whose space is not free yet
	find     *find.Index
	held     *held.Set

	// Entries with pending work. The phase of some may have changed since they were added.
	logged   []*entry // to be synced
	fresh    []*entry // whose last use is not in the catalogue
	suspects []*entry // to be read, lowest generation first, doubted ones last
	deleting []*entry // whose row has to be deleted
	deleted  []*entry // for the next sync
	cleared  []*entry // synced, but their rows say that they are doubted
}

func newTable(budgets [poolCount]int64, tenants []Tenant, eviction func() policy.Eviction, segments *find.Index, all *held.Set) table {
	t := table{index: map[tier.Name]*entry{}, owners: map[tier.TenantID]*account{}, find: segments, held: all}
	for i, name := range [...]string{"public", "private"} {
		t.pools[i] = &pool{name: name, number: i, budget: budgets[i], evict: eviction(), foreign: eviction()}
	}
	for _, tenant := range tenants {
		t.owners[tenant.ID] = t.open(tenant, eviction)
	}
	return t
}

// open creates the account of a tenant.
func (t *table) open(tenant Tenant, eviction func() policy.Eviction) *account {
	a := &account{Tenant: tenant, evict: eviction()}
	t.accounts = append(t.accounts, a)
	return a
}

func (t *table) used() int64 { return t.pools[public].used + t.pools[private].used }

// link adds an entry to the table and counts it.
func (t *table) link(e *entry, parent *entry) {
	t.index[e.name()] = e
	e.id = t.ids.Add(e)
	e.pool.entries++
	t.count(e, e.bytes, e.charge())
	if parent != nil {
		e.join(parent)
		t.rank(parent)
	}
}

// publish adds an entry to Config.Held and the segment index if it is live, and otherwise
// removes it. Both list only live entries of configured tenants.
func (t *table) publish(e *entry, live bool) {
	if e.public == live || e.owner.ID == 0 {
		return
	}
	e.public = live
	w := tier.Want{Name: e.name(), Fingerprint: e.Fingerprint, Tenant: e.owner.ID}
	if live {
		t.held.Add(w)
	} else {
		t.held.Remove(w)
	}
	if e.Kind != 0 {
		return
	}
	at := find.Scope{Tenant: e.owner.ID, Profile: e.Fingerprint}
	if live {
		t.find.Add(at, e.Hash, e.Spec.Tokens)
	} else {
		t.find.Remove(at, e.Hash, e.Spec.Tokens)
	}
}

// The method count adds bytes to the use of e's pool, and charge to the use of e's tenant.
// If e is pinned, it also adds them to the pinned bytes of the pool and of the tenant.
func (t *table) count(e *entry, bytes, charge int64) {
	e.pool.used += bytes
	e.owner.used[e.pool.number] += charge
	if e.pins > 0 {
		e.pool.pinned += bytes
		e.owner.pinned += charge
	}
}

// resize sets an entry's size and the size of its header, in bytes.
func (t *table) resize(e *entry, bytes int64, header int) {
	t.count(e, bytes-e.bytes, bytes+int64(header)-e.charge())
	e.bytes, e.HeaderBytes = bytes, header
}

// pin adds d, 1 or -1, to the pins of e. If that makes e pinned or unpinned, its parent
// gets or loses a pin too, and so on up the chain, whose length the store bounds.
func (t *table) pin(e *entry, d int) {
	for ; e != nil; e = e.parent {
		was := e.pins
		e.pins += d
		if (was == 0) == (e.pins == 0) {
			return
		}
		d = 1
		if e.pins == 0 {
			d = -1
		}
		e.pool.pinned += int64(d) * e.bytes
		e.owner.pinned += int64(d) * e.charge()
		t.rank(e)
	}
}

// rank adds e to the eviction policies if it is evictable, and otherwise removes it.
//
// A parent is added only after its last child is removed, so that finding a victim takes
// the same time however long the chains are. Adding it counts as a use, which keeps roots
// longer; they serve more requests.
func (t *table) rank(e *entry) {
	may := e.phase.kept() && e.pins == 0 && e.child == nil
	if may == e.evicts {
		return
	}
	e.evicts = may
	it := policy.Item{Bytes: e.bytes, Tokens: e.tokens(), Tenant: uint32(e.owner.ID)}
	for _, p := range [...]policy.Eviction{e.ranking(), e.owner.evict} {
		if may {
			p.Insert(e.id, it, e.used)
		} else {
			p.Remove(e.id)
		}
	}
}

// ranking returns the pool's policy that tracks e.
func (e *entry) ranking() policy.Eviction {
	if e.owner.ID == 0 {
		return e.pool.foreign
	}
	return e.pool.evict
}

// touch counts a use of an entry.
func (t *table) touch(e *entry, now time.Time) {
	e.used = now
	if !e.usedNews && e.phase.live() {
		e.usedNews = true
		t.fresh = append(t.fresh, e)
	}
	if e.evicts {
		e.ranking().Touch(e.id, now)
		e.owner.evict.Touch(e.id, now)
	}
}

// victim returns the next entry to evict from a pool; nil = none.
func (t *table) victim(p *pool) *entry {
	for _, from := range [...]policy.Eviction{p.foreign, p.evict} {
		if id, ok := from.Victim(anyID); ok {
			return t.ids.Get(id)
		}
	}
	return nil
}

func anyID(policy.ID) bool { return true }

// forget removes an entry without children from lookups and policies. Its space becomes
// free later.
func (t *table) forget(e *entry) {
	switch {
	case e.phase.kept():
		t.become(e, deleting)
	case e.phase == admitted:
		t.become(e, gone)
	default:
		t.become(e, dropped)
	}
	if e.Runs != nil {
		t.leaving += e.bytes
	}
	t.rank(e)
	delete(t.index, e.name())
	t.ids.Remove(e.id)
	e.pool.entries--
	if up := e.parent; up != nil {
		if e.pins > 0 {
			t.pin(up, -1)
		}
		e.leave()
		t.rank(up)
	}
	t.count(e, -e.bytes, -e.charge())
}
