package disk

import (
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// phase is where an entry stands.
//
//	admitted ──► live ──► forgotten ──► (row deleted and synced, no reader) ──► space free
//	    └────────────────────┘ no row: space free at once
type phase uint8

const (
	admitted  phase = iota // counted; nothing finds it
	live                   // its row is in the catalogue
	forgotten              // nothing finds it any more
)

// entry is an object on disk, or on its way there. The first group is fixed once
// the entry is live, runs and sizes before; the rest is guarded by the tier's lock.
type entry struct {
	tier.Name
	generation  uint64
	model       *model
	owner       *account
	pool        *pool
	spec        profile.SegmentSpec
	begin, end  int
	parentName  tier.Name
	created     time.Time
	runs        []slab.Run
	headerBytes int64
	payload     int64 // bytes behind the header, as stored
	coded       bool
	ranks       int
	rankBytes   int64
	manifestSum uint64
	failures    int // volume.failures when its bytes were written

	id         policy.ID
	bytes      int64 // counted: of its runs, or while it is admitted what it may need
	phase      phase
	level      tier.Level
	suspect    bool // taken up unread, and not known to have been synced
	used       time.Time
	usedNews   bool // used is not in the catalogue yet
	readers    int
	rowDeleted bool // and synced
	pins       int  // 1 while it is written or read, and 1 for each child with pins
	held       bool // by policies
	write      *write

	parent      *entry
	child       *entry // any one
	older, next *entry // siblings, both ways
}

// view is what the store gets to know.
func (e *entry) view() tier.Entry {
	level := e.level
	if e.suspect {
		level = tier.LevelMemory
	}
	return tier.Entry{
		Name: e.Name, Fingerprint: e.model.Fingerprint(), Tenant: e.owner.ID, Spec: e.spec, Begin: e.begin, End: e.end,
		Parent: e.parentName, Bytes: e.bytes, Level: level, Generation: e.generation,
	}
}

func (e *entry) tokens() int {
	if e.Kind == 0 {
		return e.end - e.begin
	}
	return e.end
}

// adopt makes e a child of up.
func (e *entry) adopt(up *entry) {
	e.parent, e.next = up, up.child
	if up.child != nil {
		up.child.older = e
	}
	up.child = e
}

// leave takes e from its parent.
func (e *entry) leave() {
	switch {
	case e.older != nil:
		e.older.next = e.next
	case e.parent != nil:
		e.parent.child = e.next
	}
	if e.next != nil {
		e.next.older = e.older
	}
	e.parent, e.older, e.next = nil, nil, nil
}

// account is what one tenant holds. Names that are not configured now have one
// too, with id 0.
type account struct {
	Tenant
	number uint32 // in the catalogue
	used   [poolCount]int64
	pinned int64
	evict  policy.Eviction
}

func (a *account) total() int64 { return a.used[public] + a.used[private] }

// The pools, by number.
const (
	public = iota
	private
	poolCount
)

// pool is a budget. Its policies hold the entries that may leave now: live, not
// read, and extended by none. Foreign ones, of tenants not configured, go first.
type pool struct {
	name    string
	number  int
	budget  int64
	used    int64 // by admitted and live entries
	pinned  int64 // of these, by entries that may not leave, nor those they extend
	entries int
	evict   policy.Eviction
	foreign policy.Eviction
}

func poolOf(kind tier.CheckpointKind) int {
	if kind == 0 {
		return public
	}
	return private
}

// catalogue is everything the tier knows of its entries. It is guarded by the
// tier's lock and begins anew when the directory is opened again.
type catalogue struct {
	index   map[tier.Name]*entry
	ids     policy.Table[entry]
	owners  map[tier.TenantID]*account
	names   map[string]*account
	pools   [poolCount]*pool
	leaving int64    // bytes of forgotten entries whose space is not free yet
	doomed  []*entry // forgotten, with rows to delete
	undone  []*entry // forgotten before anybody started to write them
	logged  []*entry // live, not synced
	fresh   []*entry // used times not in the catalogue
	suspect []*entry // to be verified
}

func (t *Tier) newCatalogue() catalogue {
	c := catalogue{index: map[tier.Name]*entry{}, owners: map[tier.TenantID]*account{}, names: map[string]*account{}}
	for i, name := range [...]string{"public", "private"} {
		c.pools[i] = &pool{name: name, number: i, budget: t.budgets[i], evict: t.cfg.Eviction(), foreign: t.cfg.Eviction()}
	}
	for _, tenant := range t.cfg.Tenants {
		a := &account{Tenant: tenant, evict: t.cfg.Eviction()}
		c.owners[tenant.ID], c.names[tenant.Name] = a, a
	}
	return c
}

// owner finds or makes the account of a name.
func (c *catalogue) owner(name string, evict func() policy.Eviction) *account {
	a := c.names[name]
	if a == nil {
		a = &account{Tenant: Tenant{Name: name}, evict: evict()}
		c.names[name] = a
	}
	return a
}

func (c *catalogue) usedLocked() int64 { return c.pools[public].used + c.pools[private].used }

// link makes an entry known and counts it.
func (c *catalogue) link(e *entry, parent *entry) {
	c.index[e.Name] = e
	e.id = c.ids.Add(e)
	e.pool.entries++
	c.count(e, e.bytes)
	if parent != nil {
		e.adopt(parent)
		c.settle(parent)
	}
}

// count adds to what an entry is charged, and to what pins keep.
func (c *catalogue) count(e *entry, bytes int64) {
	e.pool.used += bytes
	e.owner.used[e.pool.number] += bytes
	if e.pins > 0 {
		e.pool.pinned += bytes
		e.owner.pinned += bytes
	}
}

// resize sets what an entry is charged.
func (c *catalogue) resize(e *entry, bytes int64) {
	c.count(e, bytes-e.bytes)
	e.bytes = bytes
}

// pin adds to the pins of e and, where that pins or unpins it, of those it extends.
func (c *catalogue) pin(e *entry, d int) {
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
		e.owner.pinned += int64(d) * e.bytes
		c.settle(e)
	}
}

// settle tells the policies whether e may leave.
//
// A parent is not held before its last child has left, so that a victim costs the
// same however long the chains are. It comes back as used now, which keeps roots,
// that serve more requests, longer.
func (c *catalogue) settle(e *entry) {
	may := e.phase == live && e.pins == 0 && e.child == nil
	if may == e.held {
		return
	}
	e.held = may
	it := policy.Item{Bytes: e.bytes, Tokens: e.tokens(), Tenant: uint32(e.owner.ID)}
	for _, p := range [...]policy.Eviction{e.ranking(), e.owner.evict} {
		if may {
			p.Insert(e.id, it, e.used)
		} else {
			p.Remove(e.id)
		}
	}
}

// ranking is the pool's policy that e is in.
func (e *entry) ranking() policy.Eviction {
	if e.owner.ID == 0 {
		return e.pool.foreign
	}
	return e.pool.evict
}

// touch counts a use.
func (c *catalogue) touch(e *entry, now time.Time) {
	e.used = now
	if !e.usedNews && e.phase == live {
		e.usedNews = true
		c.fresh = append(c.fresh, e)
	}
	if e.held {
		e.ranking().Touch(e.id, now)
		e.owner.evict.Touch(e.id, now)
	}
}

// victim is who leaves a pool next.
func (c *catalogue) victim(p *pool) *entry {
	for _, from := range [...]policy.Eviction{p.foreign, p.evict} {
		if id, ok := from.Victim(anyID); ok {
			return c.ids.Get(id)
		}
	}
	return nil
}

func anyID(policy.ID) bool { return true }

// forget hides an entry and those that extend it from everybody, and answers how
// many bytes and entries that were. Their space is free later.
func (c *catalogue) forget(e *entry) (bytes int64, entries int) {
	for e.child != nil {
		b, n := c.forget(e.child)
		bytes, entries = bytes+b, entries+n
	}
	if e.phase == live {
		c.doomed = append(c.doomed, e)
	}
	if e.runs != nil {
		c.leaving += e.bytes
	}
	if e.write != nil && !e.write.started {
		c.undone = append(c.undone, e)
	}
	e.phase = forgotten
	c.settle(e)
	delete(c.index, e.Name)
	c.ids.Remove(e.id)
	e.pool.entries--
	up := e.parent
	if up != nil {
		if e.pins > 0 {
			c.pin(up, -1)
		}
		e.leave()
		c.settle(up)
	}
	c.count(e, -e.bytes)
	return bytes + e.bytes, entries + 1
}
