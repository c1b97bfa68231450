package objects

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options configures a Set; it never changes.
type Options struct {
	Now       func() time.Time
	Log       *decision.Log
	Lower     tier.Tier   // nil = none
	Find      *find.Index // index of segments, shared with the lower tier; nil = a new one
	Held      *held.Set   // listener for all hits, shared with the lower tier; nil = none
	Place     tier.Place
	Arena     gpuipc.Region // of public + private bytes
	PageBytes int           // page size of the arena in bytes
	Public    int64         // budget of segments, whole pages
	Private   int64         // budget of checkpoints, whole pages
	MaxChain  int
	MaxGhosts int

	EvictionPublic, EvictionPrivate, Eviction func() policy.Eviction

	Outlets bool // copies are sent to outlets

	// Fractions of a pool's budget, see ShortOf. Only used with a lower tier or outlets.
	HighWater, LowWater float64
	// Short is called when a pool has become short, see Set.Short. It must not block.
	Short func()
}

// Set holds all objects of a store, in memory and in HBM, and the accounts of pools and
// tenants. It has no lock; its owner guards it. Options.Short is the only function of the
// owner that it calls.
type Set struct {
	cfg     Options
	Tenants map[tier.TenantID]*Tenant // fixed
	HBM     *copies                   // nil without devices

	Pages       *gpuipc.PageAllocator
	Pools       [PoolCount]*Pool
	Table       policy.Table[Object]
	Segments    *index.Map[Object]
	Checkpoints *index.Map[Object] // the first of all checkpoints with a hash; Sibling links them
	Ghosts      *ghost.List
	Deadlines   deadline.Heap[any] // deadlines of leases, fills, promotions, searches, pins and read-ahead
	counters    *stats.Counters
	trials      stats.Counters // of the trial profile
	corrupt     int            // number of corrupt objects in memory
	WriteBehind bool           // every dirty object should be written at once, see ShortOf
	SendAll     bool           // every object should be offered to outlets at once, see ShortOf

	Deleting map[tier.Name]int // names that operators are removing from the lower tier
	asked    tier.Name         // argument of the last call to the lower tier
	found    tier.Entry        // result of EntryBelow
}

// CountersOf returns the counters of a profile's objects.
func (s *Set) CountersOf(p *Profile) *stats.Counters {
	if p.Trial {
		return &s.trials
	}
	return s.counters
}

// Trials returns the counters of the trial profile.
func (s *Set) Trials() *stats.Counters { return &s.trials }

// New returns a set without objects, which counts in counters.
func New(o Options, tenants []*Tenant, counters *stats.Counters) *Set {
	if o.Find == nil {
		o.Find = &find.Index{}
	}
	s := &Set{
		cfg: o, Tenants: map[tier.TenantID]*Tenant{}, counters: counters,
		Pages:       gpuipc.NewPageAllocator(o.Public+o.Private, o.PageBytes),
		Segments:    index.New[Object](),
		Checkpoints: index.New[Object](),
		Ghosts:      ghost.New(o.MaxGhosts),
		Deleting:    map[tier.Name]int{},
	}
	s.Pools[PublicPool] = &Pool{Name: "public", Number: PublicPool, Budget: o.Public, Evict: o.EvictionPublic()}
	s.Pools[PrivatePool] = &Pool{Name: "private", Number: PrivatePool, Budget: o.Private, Evict: o.EvictionPrivate()}
	if o.Lower != nil {
		s.Pools[PublicPool].Dirty.Eviction, s.Pools[PrivatePool].Dirty.Eviction = o.EvictionPublic(), o.EvictionPrivate()
	}
	if o.Outlets {
		s.Pools[PublicPool].Unsent.Eviction, s.Pools[PrivatePool].Unsent.Eviction = o.EvictionPublic(), o.EvictionPrivate()
	}
	for _, t := range tenants {
		t.Used = make([]int64, PoolCount)
		if t.QuotaBytes > 0 {
			t.Evict = o.Eviction()
		}
		s.Tenants[t.ID] = t
	}
	return s
}

// Segment finds a segment of a profile and tenant, published or being filled; nil = none.
func (s *Set) Segment(key *[32]byte, p *Profile, t *Tenant) *Object {
	o := s.Segments.Find(key)
	if o == nil || o.Profile != p || o.Tenant != t {
		return nil
	}
	return o
}

// Checkpoint finds the checkpoint of a hash and kind, published or being filled; nil = none.
func (s *Set) Checkpoint(hash *[32]byte, kind tier.CheckpointKind, p *Profile, t *Tenant) *Object {
	for o := s.Checkpoints.Find(hash); o != nil; o = o.Sibling {
		if o.Profile == p && o.Tenant == t && o.Kind == kind {
			return o
		}
	}
	return nil
}

// Named finds an object in memory, published or being filled; nil = none.
func (s *Set) Named(n tier.Name, p *Profile, t *Tenant) *Object {
	if n.Kind == 0 {
		return s.Segment(&n.Key, p, t)
	}
	return s.Checkpoint(&n.Key, n.Kind, p, t)
}

// Same returns the object in memory that o would duplicate; nil = none.
func (s *Set) Same(o *Object) *Object {
	return s.Named(o.Label(), o.Profile, o.Tenant)
}

// Best finds the preferred published checkpoint of the accepted kinds. If there is none,
// it returns the most informative reason, or ReasonNone if no checkpoint has the hash.
func (s *Set) Best(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant) (*Object, tier.Reason) {
	return s.BestNode(hash, accept, p, t, false)
}

// BestNode is Best, but if the parameter rows is true it also accepts a stripped checkpoint,
// since the caller needs only its rows.
func (s *Set) BestNode(hash *[32]byte, accept tier.CheckpointKind, p *Profile, t *Tenant, rows bool) (*Object, tier.Reason) {
	var best *Object
	why := tier.ReasonNone
	for o := s.Checkpoints.Find(hash); o != nil; o = o.Sibling {
		switch {
		case o.Profile != p || o.Tenant != t:
		case o.Fill != nil && !(rows && o.Published()):
			why = MoreTelling(why, tier.ReasonPending)
		case o.Phase == Stripped && !rows:
			why = MoreTelling(why, tier.ReasonEvicted)
		case o.Kind&accept == 0:
			why = MoreTelling(why, tier.ReasonFlagOnly)
		case !s.Sound(o):
			why = MoreTelling(why, tier.ReasonAborted)
		case best == nil || o.Kind.Before(best.Kind):
			best = o
		}
	}
	return best, why
}

// MoreTelling returns the more informative of two reasons for a miss.
func MoreTelling(a, b tier.Reason) tier.Reason {
	rank := [tier.Reasons]uint8{tier.ReasonUnknown: 1, tier.ReasonRefused: 2, tier.ReasonAborted: 3, tier.ReasonRemoved: 4, tier.ReasonEvicted: 5, tier.ReasonPending: 6, tier.ReasonFlagOnly: 7}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// Gone returns why a key that no tier has is a miss.
func (s *Set) Gone(key *[32]byte, p *Profile, t *Tenant) tier.Reason {
	why, _ := s.Ghosts.Why(key, p.ID, t.ID)
	return why
}

// Sound reports whether neither an object nor its ancestors are known to be corrupt.
func (s *Set) Sound(o *Object) bool {
	if s.corrupt == 0 {
		return true
	}
	for ; o != nil; o = o.Parent {
		if o.Corrupt {
			return false
		}
	}
	return true
}

// Promotable reports whether an object is whole in memory and not known to be corrupt, so
// that it can be copied to HBM or pinned.
func (s *Set) Promotable(o *Object) bool {
	return o.Phase == Whole && o.Fill == nil && s.Sound(o)
}
