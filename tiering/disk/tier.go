package disk

import (
	"math/bits"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tier is a disk below memory. It implements tiering.Tier.
type Tier struct {
	cfg     Config
	log     zerolog.Logger
	coded   [profile.PartV + 1]bool
	budgets [poolCount]int64
	staging *budget // bytes of coded writes in memory

	mu sync.Mutex // guards what follows
	catalogue
	vol         *volume // nil while the directory is not open
	models      map[profile.Fingerprint]*model
	counters    Counters
	breaker     breaker
	state       State
	stateCause  error
	stateSince  time.Time
	running     bool     // Run is
	refusing    bool     // Close has begun: nothing is admitted
	closing     bool     // Run is to end
	queue       []*write // started, first come first served
	queued      int      // admitted and not ended, started or not
	started     int      // of these, started
	queuedBytes int64
	ready       []*write // written, without a row
	deleted     []*entry // row deleted, not synced
	raising     []waiter
	spaceWanted int                  // workers that wait for space
	syncWanted  bool                 // the clock says so
	removed     map[tier.Name]uint64 // generations of rows that the next opening has to delete
	reading     int                  // reads that use vol
	answering   int                  // waiters being called back

	// Conditions of mu, by who waits.
	jobs  *sync.Cond // workers, for the queue
	rows  *sync.Cond // the committer, for ready and doomed
	syncs *sync.Cond // the syncer
	space *sync.Cond // workers, for space
	idle  *sync.Cond // who waits for the end of reads, writes or Run
}

var _ tier.Tier = (*Tier)(nil)

// Open makes a tier and, unless told to leave that to Run, opens its directory.
// That this fails is no error of Open: Health tells why, and Run tries again. An
// error lists what is wrong with the configuration.
func Open(cfg Config) (*Tier, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{
		cfg: cfg, log: cfg.Log, budgets: budgets(&cfg), staging: newBudget(cfg.QueueBytes),
		models: map[profile.Fingerprint]*model{}, removed: map[tier.Name]uint64{}, state: StateOpening, stateSince: cfg.Now(),
	}
	for _, kind := range cfg.Coded {
		t.coded[kind] = true
	}
	for _, c := range [...]**sync.Cond{&t.jobs, &t.rows, &t.syncs, &t.space, &t.idle} {
		*c = sync.NewCond(&t.mu)
	}
	t.catalogue = t.newCatalogue()
	if !cfg.OpenLater {
		t.attach()
	}
	return t, nil
}

// budgets divides what the slabs that fit hold in the ratio of the budgets asked
// for: their headers take a granule each.
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

// round is what an entry of some bytes takes.
func (t *Tier) round(bytes int64) int64 {
	return (bytes + t.cfg.GranuleBytes - 1) &^ (t.cfg.GranuleBytes - 1)
}

// wakeLocked has everybody look at the state again.
func (t *Tier) wakeLocked() {
	for _, c := range [...]*sync.Cond{t.jobs, t.rows, t.syncs, t.space, t.idle} {
		c.Broadcast()
	}
}

// findLocked is a live entry that Read would try.
func (t *Tier) findLocked(n *tier.Name) *entry {
	e := t.index[*n]
	if e == nil || e.phase != live || t.state >= StateOpening {
		return nil
	}
	return e
}

// Lookup implements tiering.Tier.
func (t *Tier) Lookup(n *tier.Name) (tier.Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.findLocked(n)
	if e == nil || t.readsOffLocked() {
		return tier.Entry{}, false
	}
	return e.view(), true
}

// Used implements tiering.Tier.
func (t *Tier) Used(id tier.TenantID) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.owners[id]; a != nil {
		return a.total()
	}
	return 0
}

// Trim implements tiering.Tier.
func (t *Tier) Trim(id tier.TenantID, bytes int64, spare []tier.Name) (freed int64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.owners[id]
	if a == nil {
		return 0, false
	}
	may := anyID
	if len(spare) > 0 {
		may = t.notInLocked(spare)
	}
	for range trimRows {
		if freed >= bytes {
			return freed, false
		}
		victim, ok := a.evict.Victim(may)
		if !ok {
			return freed, false
		}
		e := t.ids.Get(victim)
		freed += e.bytes
		t.evictLocked(e, &t.counters.EvictedQuota)
	}
	return freed, freed < bytes
}

// trimRows bounds what one Trim forgets, since lookups wait for it.
const trimRows = 32

// notInLocked selects the entries that are not among some names.
func (t *Tier) notInLocked(names []tier.Name) func(policy.ID) bool {
	spared := make(map[*entry]bool, len(names))
	for i := range names {
		if e := t.index[names[i]]; e != nil {
			spared[e] = true
		}
	}
	return func(id policy.ID) bool { return !spared[t.ids.Get(id)] }
}

// Touch implements tiering.Tier.
func (t *Tier) Touch(n *tier.Name) {
	now := t.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(n); e != nil {
		t.touch(e, now)
	}
}

// Remove implements tiering.Tier. What extends the entry goes with it, and what
// is on its way to the disk is given up. The entry does not come back after a crash
// once the next sync has been made: after Config.SyncEvery at the latest.
func (t *Tier) Remove(n *tier.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.index[*n]
	if e == nil {
		return false
	}
	t.counters.Removed++
	t.forgetLocked(e)
	return true
}

// budget bounds bytes in use by several goroutines. Who asks for more than there
// is gets all of it.
type budget struct {
	mu   sync.Mutex
	cond *sync.Cond
	all  int64
	free int64
}

func newBudget(bytes int64) *budget {
	b := &budget{all: bytes, free: bytes}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *budget) take(bytes int64) (took int64) {
	bytes = min(bytes, b.all)
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.free < bytes {
		b.cond.Wait()
	}
	b.free -= bytes
	return bytes
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	b.free += bytes
	b.mu.Unlock()
	b.cond.Broadcast()
}
