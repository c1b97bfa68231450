package objects

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Set holds all objects of a store, in memory and in HBM, and the accounts of pools and
// tenants. Its fields have a part of the state each; a field knows only fields above it,
// and the methods of Set, the changes in the life of an object, use all of them. It has no
// lock; its owner guards it. Options.Short is the only function of the owner that it calls.
type Set struct {
	cfg     Options
	Tenants map[tier.TenantID]*Tenant // fixed
	Pools   [PoolCount]*Pool          // fixed

	Table     policy.Table[Object]
	Deadlines deadline.Heap[any] // deadlines of leases, fills, promotions, searches, pins and read-ahead
	Names     Names
	Below     Below
	Memory    Memory
	Policies  Policies
	Quotas    Quotas
	Accounts  Accounts
	HBM       Copies
	Records   Records
}

// New returns a set without objects, which counts in counters.
func New(o Options, tenants []*Tenant, counters *stats.Counters) *Set {
	if o.Find == nil {
		o.Find = &find.Index{}
	}
	s := &Set{cfg: o, Tenants: map[tier.TenantID]*Tenant{}}
	s.Names = Names{cfg: &s.cfg, Segments: index.New[Object](), Checkpoints: index.New[Object](), Ghosts: ghost.New(o.MaxGhosts)}
	s.Below = Below{cfg: &s.cfg, names: &s.Names, Deleting: map[tier.Name]int{}}
	s.Memory = Memory{cfg: &s.cfg, Pages: gpuipc.NewPageAllocator(o.Public+o.Private, o.PageBytes)}
	s.Policies = Policies{cfg: &s.cfg, table: &s.Table}
	s.Quotas = Quotas{cfg: &s.cfg, table: &s.Table, below: &s.Below, policies: &s.Policies}
	s.Accounts = Accounts{table: &s.Table, names: &s.Names, memory: &s.Memory, policies: &s.Policies}
	s.HBM = Copies{
		cfg: &s.cfg, tenants: s.Tenants, table: &s.Table, names: &s.Names, below: &s.Below, policies: &s.Policies, quotas: &s.Quotas, accounts: &s.Accounts,
	}
	s.Records = Records{cfg: &s.cfg, policies: &s.Policies, ghosts: s.Names.Ghosts, counters: counters}
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

// Use keeps an object's memory in use until Unuse. It does nothing for nil.
func (s *Set) Use(o *Object) {
	if o != nil {
		o.Ops++
		s.Account(o)
	}
}

// Unuse ends a Use.
func (s *Set) Unuse(o *Object) {
	if o != nil {
		o.Ops--
		s.Account(o)
	}
}

// Account updates the accounts after a count of o has changed, and frees the memory of o
// once o is neither linked nor in use.
func (s *Set) Account(o *Object) {
	s.Accounts.settle(o)
	s.dropPlaceholder(o)
}

// Link makes a new object, whose memory is allocated, visible to lookups.
func (s *Set) Link(o *Object) {
	o.on(evLink)
	s.Names.link(o)
	s.Accounts.Book(o)
	if up := o.Parent; up != nil {
		if o.NeedsStates() && up.Phase == Stripped {
			panic(fmt.Sprintf("objects: %s behind a node without states", o.Name()))
		}
		up.Children++
		up.Kids ^= o.ID
		s.Policies.revalue(up)
		s.Policies.Rank(up)
	}
	s.Account(o)
	if s.Policies.Short(o.Pool) {
		s.cfg.Short()
	}
}

// Unlink hides an object from lookups and policies. Later misses of the object report the
// reason why. The object's memory is freed now, or when its last user ends.
func (s *Set) Unlink(o *Object, why tier.Reason) {
	if o.Children > 0 {
		panic(fmt.Sprintf("objects: %s leaves before its %d children", o.Name(), o.Children))
	}
	s.Names.unlink(o)
	if o.Published() {
		s.Names.countPublished(o, -1)
	}
	o.on(evDetach)
	s.HBM.leave(o, why)
	if o.Corrupt {
		o.Corrupt = false
		s.Names.corrupt--
	}
	s.Policies.Rank(o)
	s.EndReadAhead(o, &s.Records.counters.ReadAheadWasted)
	up := o.Parent
	if up != nil {
		// An operation or a tier that still reads o does not need the parent, which may be
		// evicted next.
		up.Children--
		up.Kids ^= o.ID
		s.Policies.revalue(up)
		s.Policies.Rank(up)
		if o.Pins > 0 {
			s.Accounts.pin(up, -1)
		}
		o.Parent = nil
	}
	s.Names.Ghosts.Note(ghost.Entry{
		Key: o.Key, Profile: o.Profile.ID, Tenant: o.Tenant.ID, Reason: why, Tokens: uint32(o.Tokens()),
	})
	s.Account(o)
	if up != nil {
		s.dropPlaceholder(up)
	}
}

// Publish ends the fill of a complete object and makes it a hit.
func (s *Set) Publish(o *Object, now time.Time, why decision.Reason) {
	o.Fill, o.Used = nil, now
	s.Deadlines.Remove(&o.Until)
	bytes := o.PageBytes
	if o.Phase == Stripped {
		bytes = o.StatePages
		s.restored(o)
	} else {
		o.on(evPublish)
		s.Names.countPublished(o, 1)
	}
	s.Records.Decide(o, decision.Admit, why, bytes)
	s.Account(o)
	s.Policies.Rank(o)
	s.HBM.adopt(o)
}

// MarkCorrupt removes an object from memory after the tier found that its bytes are not
// those that were published. An object that others extend stays until the others are
// removed, but no lookup finds it or the others.
func (s *Set) MarkCorrupt(o *Object) {
	s.Records.counters.CorruptInMemory++
	o.Refused = true
	switch {
	case !o.Linked():
	case o.Children == 0:
		s.Records.Decide(o, decision.Drop, decision.Corrupt, o.PageBytes)
		s.Unlink(o, tier.ReasonAborted)
	case !o.Corrupt:
		o.Corrupt = true
		s.Names.corrupt++
		s.Policies.tell(o)
	}
}

// EndReadAhead ends an object's status as read ahead and not used yet, because the object
// is being used, is removed unused, or was not used in time. It adds 1 to the given
// counter.
func (s *Set) EndReadAhead(o *Object, counter *uint64) {
	if o.Ahead {
		o.Ahead = false
		s.Deadlines.Remove(&o.Until)
		o.Pool.AheadBytes -= o.PageBytes
		*counter++
	}
}
