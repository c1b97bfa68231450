package disk

import (
	"math/bits"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tier is a disk below memory. It implements tier.Tier.
type Tier struct {
	cfg   Config // its granule and slabs are adopted from the directory
	log   zerolog.Logger
	coder *payload.Encoder
	store slab.StoreID // of the directory, once it was opened; owned by the goroutine that opens it, Open and then Run

	// Conditions of mu, by waiter.
	jobs  *sync.Cond // workers waiting for the queue
	rows  *sync.Cond // the committer waiting for rows to write or delete
	syncs *sync.Cond // the syncer
	space *sync.Cond // workers waiting for space
	idle  *sync.Cond // waiting for the end of reads, writes or Run

	mu lockhold.Mutex // guards what follows
	table
	mount    *mount // nil while the directory is not open
	health   health
	life     life
	running  bool // Run is running
	closed   bool // Close was called
	queue    queue
	syncing  syncing
	models   map[profile.Fingerprint]*model
	removed  removals
	reading  int // reads that use the mount
	answers  int // callbacks in progress
	reads    prometheus.Histogram
	writes   prometheus.Histogram
	counters Counters
}

var _ tier.Tier = (*Tier)(nil)

// removals are the rows that the next opening of a store has to delete: names with their
// highest generation.
type removals struct {
	of   slab.StoreID
	rows map[tier.Name]uint64
}

// from returns what was removed from a store.
func (r *removals) from(id slab.StoreID) map[tier.Name]uint64 {
	if r.of != id {
		return nil
	}
	return r.rows
}

func (r *removals) add(m *mount, e *entry) {
	if r.of != m.Format.ID || r.rows == nil {
		*r = removals{of: m.Format.ID, rows: map[tier.Name]uint64{}}
	}
	r.rows[e.name()] = max(r.rows[e.name()], e.Generation)
}

// model is a profile of entries, and the name of its model for output.
type model struct {
	*profile.Profile // nil: unknown, and its entries are dormant
	name             string
	dormant          int // number of dormant entries; guarded by the tier's lock
}

func newModel(p *profile.Profile) *model { return &model{Profile: p, name: p.Identity().Model} }

// modelLocked returns the model of a profile, which it creates if necessary.
func (t *Tier) modelLocked(p *profile.Profile) *model {
	m := t.models[p.Fingerprint()]
	if m == nil {
		m = newModel(p)
		t.models[p.Fingerprint()] = m
	}
	return m
}

// Open creates a tier and, unless Config.OpenLater is set, opens its directory. A failure
// to open it is not an error: Health reports why, and Run retries. An error lists the
// problems of the configuration.
func Open(cfg Config) (*Tier, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{
		cfg: cfg, log: cfg.Log, coder: payload.NewEncoder(cfg.Device, cfg.Coded, cfg.QueueBytes),
		models: map[profile.Fingerprint]*model{},
		reads:  duration("read"), writes: duration("write"),
		health: health{state: StateOpening, since: cfg.Now()}, queue: queue{all: map[*write]struct{}{}},
	}
	for _, c := range [...]**sync.Cond{&t.jobs, &t.rows, &t.syncs, &t.space, &t.idle} {
		*c = sync.NewCond(&t.mu)
	}
	t.table = t.newTable()
	if !cfg.OpenLater {
		t.attach()
	}
	return t, nil
}

func (t *Tier) newTable() table {
	return newTable(budgets(&t.cfg), t.cfg.Tenants, t.cfg.Eviction, t.cfg.Find, t.cfg.Held)
}

// budgets divides the usable space of the slabs that fit in the ratio of the configured
// budgets. The header of a slab takes a granule.
func budgets(cfg *Config) (b [poolCount]int64) {
	total := cfg.PublicBytes + cfg.PrivateBytes
	usable := total / cfg.SlabBytes * (cfg.SlabBytes - cfg.GranuleBytes)
	high, low := bits.Mul64(uint64(usable), uint64(cfg.PublicBytes))
	part, _ := bits.Div64(high, low, uint64(total))
	b[public] = int64(part) &^ (cfg.GranuleBytes - 1)
	if cfg.PrivateBytes > 0 {
		b[private] = usable - b[public]
	}
	return b
}

// round returns the space of an entry with a number of bytes.
func (t *Tier) round(bytes int64) int64 {
	return (bytes + t.cfg.GranuleBytes - 1) &^ (t.cfg.GranuleBytes - 1)
}

// wakeLocked makes all waiters check the state again.
func (t *Tier) wakeLocked() {
	for _, c := range [...]*sync.Cond{t.jobs, t.rows, t.syncs, t.space, t.idle} {
		c.Broadcast()
	}
}

// rowsAtOnce bounds how many entries are handled while the lock is held, since lookups
// wait for it, and for the store's lock with it. An eviction, the most expensive step for
// one entry, takes 1.3 µs among 100,000 entries (measured).
const rowsAtOnce = 8

// findLocked returns a live entry that Read would try.
func (t *Tier) findLocked(n *tier.Name) *entry {
	e := t.index[*n]
	if e == nil || !e.phase.live() || !t.health.state.open() {
		return nil
	}
	return e
}

// Lookup implements tier.Tier.
func (t *Tier) Lookup(n *tier.Name) (tier.Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.findLocked(n)
	if e == nil || t.readsOffLocked() {
		return tier.Entry{}, false
	}
	return e.view(), true
}

// Used implements tier.Tier.
func (t *Tier) Used(id tier.TenantID) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.owners[id]; a != nil {
		return a.total() - a.owed
	}
	return 0
}

// Touch implements tier.Tier.
func (t *Tier) Touch(n *tier.Name) {
	now := t.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(n); e != nil {
		t.touch(e, now)
	}
}

// Trim implements tier.Tier.
func (t *Tier) Trim(id tier.TenantID, bytes int64, spare []tier.Name) (freed int64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.owners[id]
	if a == nil {
		return 0, false
	}
	may := anyID
	if len(spare) > 0 {
		may = t.notIn(spare)
	}
	for range rowsAtOnce {
		if freed >= bytes {
			return freed, false
		}
		n := t.evictForQuotaLocked(a, may)
		if n == 0 {
			return freed, false
		}
		freed += n
	}
	return freed, freed < bytes
}

// notIn selects the entries that are not among some names.
func (t *table) notIn(names []tier.Name) func(policy.ID) bool {
	spared := make(map[*entry]bool, len(names))
	for i := range names {
		if e := t.index[names[i]]; e != nil {
			spared[e] = true
		}
	}
	return func(id policy.ID) bool { return !spared[t.ids.Get(id)] }
}

// Remove implements tier.Tier. The descendants of the entry are removed with it, and
// writes in flight are given up. After the next sync, at the latest after
// Config.SyncEvery, the entry does not reappear after a crash.
func (t *Tier) Remove(n *tier.Name) bool {
	t.mu.Lock()
	e := t.index[*n]
	if e == nil {
		t.mu.Unlock()
		return false
	}
	t.counters.Removed++
	left := t.forgetTreeLocked(e)
	t.mu.Unlock()
	if left {
		t.forgetTree(e)
	}
	return true
}

// forgetTree forgets an entry and its descendants, unless that has already happened.
func (t *Tier) forgetTree(e *entry) {
	turns := t.mu.Turns()
	for left := true; left; {
		turns.Lock()
		left = t.forgetTreeLocked(e)
		turns.Unlock()
	}
}

// forgetTreeLocked forgets some of the descendants of e, leaves first, and finally e.
// left reports that some remain.
func (t *Tier) forgetTreeLocked(e *entry) (left bool) {
	if e.forgotten() {
		return false
	}
	for at, i := e, 0; i < rowsAtOnce; i++ {
		for at.child != nil {
			at = at.child
		}
		up := at.parent
		t.forgetLocked(at)
		if at == e {
			return false
		}
		t.counters.LostWithOther++
		at = up
	}
	return true
}

// forgetLocked forgets an entry without children.
func (t *Tier) forgetLocked(e *entry) {
	t.forget(e)
	if e.phase == gone { // its write had not started
		t.counters.WritesDropped++
		t.unqueueLocked(e)
	}
	t.rows.Signal()
}
