package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tenant is a group of clients that share cached objects. Tenants have separate hits but
// not separate memory: a tenant's salt is part of every key, so two tenants never share an
// entry. Ids, names and salts are unique, and no id is 0.
type Tenant struct {
	ID   tier.TenantID
	Name string
	Salt []byte // any length; empty for at most one tenant
	// QuotaBytes limits the bytes of the tenant in all pools (HBM included) and the lower
	// tier together; 0 = no quota. Pools count whole pages and the records of objects,
	// also of objects being filled. Pools of memory also count 4 bytes for each stored
	// token id. The lower tier counts the bytes that it charges for an entry. An object
	// that is in two places counts twice.
	QuotaBytes int64
}

// Tenants is a list of tenants with distinct ids and names.
type Tenants []Tenant

// ByID finds a tenant; nil if there is none.
func (l Tenants) ByID(id tier.TenantID) *Tenant {
	return l.find(func(t *Tenant) bool { return t.ID == id })
}

// ByName finds a tenant; nil if there is none.
func (l Tenants) ByName(name string) *Tenant {
	return l.find(func(t *Tenant) bool { return t.Name == name })
}

// NameOf returns the name of a tenant, or "" if there is none.
func (l Tenants) NameOf(id tier.TenantID) string {
	if t := l.ByID(id); t != nil {
		return t.Name
	}
	return ""
}

func (l Tenants) find(is func(*Tenant) bool) *Tenant {
	for i := range l {
		if is(&l[i]) {
			return &l[i]
		}
	}
	return nil
}

// Config configures a Store. A zero field takes the default that its comment states,
// unless it is marked required.
type Config struct {
	Device gpuipc.Device // required
	Name   string        // of the region; default "spliced-arena"

	// Budgets of the pools in bytes, rounded down to whole pages. One of them may be 0. The
	// token ids of segments are stored outside the arena but count towards PublicBytes.
	PublicBytes  int64
	PrivateBytes int64
	// PageBytes is the unit of allocation: a power of two from 4 KiB to 16 MiB. The default is
	// 64 KiB, a guess that wastes at most one page per object and rank.
	PageBytes int
	Huge      gpuipc.HugePages

	Tenants []Tenant // required, at least one

	// EvictionPublic and EvictionPrivate return a new eviction policy for segments and for
	// checkpoints; the default is Eviction.
	EvictionPublic, EvictionPrivate func() policy.Eviction

	Eviction func() policy.Eviction // returns a new policy, also for each tenant with a quota; default policy.NewDefault
	Cost     costs.Priors           // initial assumptions of the cost predictions

	Advise advise.Config    // bounds of what advice remembers
	Now    func() time.Time // default time.Now

	LeaseTTL    time.Duration // of leases whose query gives none; default 1 minute
	MaxLeaseTTL time.Duration // the store shortens longer requests, the socket refuses them; default 10 minutes
	FillTTL     time.Duration // from reserve to the last commit; default 1 minute
	SweepEvery  time.Duration // time between two sweeps, in which Run ends what has expired; default 1 second

	MaxLeases       int // per session, active and expired ones; default 65536
	MaxReservations int // per session; default 4096
	MaxProfiles     int // default 64
	MaxChain        int // checkpoints from the root of a chain to its end; default 256
	MaxDeparted     int // keys of objects that left or were refused, kept with the reason; default 65536
	MaxDecisions    int // kept in the log of decisions, at most a quarter of them advice; default 4096
	// Decided receives the decisions about objects and their copies in HBM, as they are
	// made. It is called with the store's lock held and must not block; nil = no
	// listener.
	Decided func(decision.Decision)

	Log zerolog.Logger

	HBM []hbm.Config // GPU memory, one per device; the order defines the device ids

	Lower tier.Tier // the next slower tier; nil = objects that leave memory are lost
	// Find is the index to which Lower adds its segments; nil = a new one.
	Find *find.Index
	// Held is notified of each object that becomes, or ceases to be, a hit in memory.
	// Lower notifies it of the lower tier's entries. nil = no listener.
	Held *held.Set
	// DefaultLevel is the durability level that an object must reach before its publication is
	// acknowledged, if its commits name none. The default is LevelMemory.
	DefaultLevel tier.Level
	// WriteBehind writes every published object to the lower tier at once. Without it,
	// only objects are written that the marks below, an eviction or a commit require.
	WriteBehind bool
	// HighWater and LowWater are fractions of a pool's budget. The defaults are 0.90 and 0.80.
	// When a pool is fuller than HighWater, the cleaner writes objects ahead of their
	// eviction, until all bytes above LowWater are free or belong to objects that can be
	// dropped without a write.
	HighWater, LowWater float64
	// ReadAhead promotes objects that a match found in the lower tier.
	ReadAhead     bool
	MaxPromotions int   // concurrent reads of the lower tier; default 4
	PromoteBytes  int64 // most bytes of all objects being read at once, except for a single larger object; default 256 MiB
	PromoteQueue  int   // promotions waiting or running; default 4096

	// Remote may have objects that neither memory nor Lower has. The store fetches them
	// for an acquire or a load, and with ReadAhead after a match; nil = none.
	Remote     tier.Remote
	MaxFinds   int           // concurrent queries of Remote; default 8
	MaxFetches int           // concurrent reads of Remote, with a separate budget of PromoteBytes; default 8
	FindTTL    time.Duration // timeout of a query; default 5 seconds

	// Outlets receive copies of objects that this node may evict. Each copy is sent to the
	// first outlet that accepts it.
	Outlets []Outlet
}

// Outlet is a place for copies of objects that this node may evict. By default it receives
// objects that clients have used again and objects that are evicted from memory. It gets
// them only if they are not believed to be cached elsewhere, and if fetching them back
// takes less time than computing their tokens.
type Outlet struct {
	To tier.Sink
	// If All is true, the outlet gets every object as soon as it is published, even if other nodes
	// have the object and however little time it saves.
	All bool
	// If Last is true, the outlet gets only objects that are about to be evicted from memory and
	// that the lower tier does not have. They are offered before the eviction, because the
	// receiver fetches them from this node.
	Last bool
}

const (
	minPageBytes = 4 << 10
	maxPageBytes = 16 << 20
)

// Validate lists every problem of the configuration at once.
func (c *Config) Validate() error {
	var bad []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf(format+": %w", append(args, tier.ErrInvalid)...))
		}
	}
	page := c.PageBytes
	check(c.Device != nil, "no device")
	check(page >= minPageBytes && page <= maxPageBytes && page&(page-1) == 0,
		"page of %d bytes is not a power of two from %d to %d", page, minPageBytes, maxPageBytes)
	check(c.PublicBytes >= 0 && c.PrivateBytes >= 0, "pools of %d and %d bytes", c.PublicBytes, c.PrivateBytes)
	check(c.PublicBytes >= int64(page) || c.PrivateBytes >= int64(page),
		"pools of %d and %d bytes: none holds a page of %d", c.PublicBytes, c.PrivateBytes, page)
	check(c.LeaseTTL > 0 && c.LeaseTTL <= c.MaxLeaseTTL, "lease of %v, at most %v", c.LeaseTTL, c.MaxLeaseTTL)
	check(c.FillTTL > 0 && c.SweepEvery > 0, "fill time %v, sweep every %v", c.FillTTL, c.SweepEvery)
	check(c.MaxLeases > 0 && c.MaxReservations > 0 && c.MaxProfiles > 0 && c.MaxChain > 0 && c.MaxDeparted > 0 && c.MaxDecisions > 0,
		"a bound is negative")
	check(c.DefaultLevel >= tier.LevelMemory && c.DefaultLevel <= tier.LevelSynced, "acknowledgement level %d", c.DefaultLevel)
	check(c.LowWater > 0 && c.LowWater <= c.HighWater && c.HighWater <= 1, "marks of %v and %v", c.LowWater, c.HighWater)
	check(c.MaxPromotions > 0 && c.PromoteBytes > 0 && c.PromoteQueue > 0,
		"%d promotions of %d bytes at once, %d in the queue", c.MaxPromotions, c.PromoteBytes, c.PromoteQueue)
	check(c.MaxFinds > 0 && c.MaxFetches > 0 && c.FindTTL > 0, "%d queries of %v and %d reads beyond the node at once", c.MaxFinds, c.FindTTL, c.MaxFetches)
	for i := range c.Outlets {
		check(c.Outlets[i].To != nil, "outlet %d leads nowhere", i)
	}
	c.Advise.Validate(check)
	devices := map[gpuipc.UUID]bool{}
	for i := range c.HBM {
		c.HBM[i].Validate(check)
		if d := c.HBM[i].Device; d != nil {
			check(!devices[d.UUID()], "HBM: device %v is named twice", d.UUID())
			devices[d.UUID()] = true
		}
	}
	check(len(c.Tenants) > 0, "no tenant")
	ids, names, salts := map[tier.TenantID]bool{}, map[string]bool{}, map[string]bool{}
	for _, t := range c.Tenants {
		check(t.ID != 0, "tenant %q: id 0 stands for nobody", t.Name)
		check(!ids[t.ID], "tenant %q: id %d is taken", t.Name, t.ID)
		check(!names[t.Name], "tenant %q: name is taken", t.Name)
		check(!salts[string(t.Salt)], "tenant %q: another tenant has its salt", t.Name)
		check(t.QuotaBytes >= 0, "tenant %q: quota of %d bytes", t.Name, t.QuotaBytes)
		ids[t.ID], names[t.Name], salts[string(t.Salt)] = true, true, true
	}
	return errors.Join(bad...)
}

// Defaults returns the configuration that the daemon uses if no setting changes it.
func Defaults() Config {
	return Config{HBM: []hbm.Config{{AfterMatch: true}}, WriteBehind: true, ReadAhead: true}.WithDefaults()
}

// WithDefaults sets zero fields to their defaults.
func (c Config) WithDefaults() Config {
	c.Name = cmp.Or(c.Name, "spliced-arena")
	c.PageBytes = cmp.Or(c.PageBytes, 64<<10)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, time.Minute)
	c.MaxLeaseTTL = cmp.Or(c.MaxLeaseTTL, max(10*time.Minute, c.LeaseTTL))
	c.FillTTL = cmp.Or(c.FillTTL, time.Minute)
	c.SweepEvery = cmp.Or(c.SweepEvery, time.Second)
	c.MaxLeases = cmp.Or(c.MaxLeases, 65536)
	c.MaxReservations = cmp.Or(c.MaxReservations, 4096)
	c.MaxProfiles = cmp.Or(c.MaxProfiles, 64)
	c.MaxChain = cmp.Or(c.MaxChain, 256)
	c.MaxDeparted = cmp.Or(c.MaxDeparted, 65536)
	c.MaxDecisions = cmp.Or(c.MaxDecisions, 4096)
	if c.Find == nil {
		c.Find = &find.Index{}
	}
	c.DefaultLevel = cmp.Or(c.DefaultLevel, tier.LevelMemory)
	c.HighWater = cmp.Or(c.HighWater, 0.90)
	c.LowWater = cmp.Or(c.LowWater, min(0.80, c.HighWater))
	c.MaxPromotions = cmp.Or(c.MaxPromotions, 4)
	c.PromoteBytes = cmp.Or(c.PromoteBytes, 256<<20)
	c.PromoteQueue = cmp.Or(c.PromoteQueue, 4096)
	c.MaxFinds = cmp.Or(c.MaxFinds, 8)
	c.MaxFetches = cmp.Or(c.MaxFetches, 8)
	c.FindTTL = cmp.Or(c.FindTTL, 5*time.Second)
	c.Advise = c.Advise.WithDefaults()
	devices := make([]hbm.Config, len(c.HBM))
	for i := range c.HBM {
		devices[i] = c.HBM[i].WithDefaults()
	}
	c.HBM = devices
	if c.Eviction == nil {
		c.Eviction = policy.NewDefault
	}
	if c.EvictionPublic == nil {
		c.EvictionPublic = c.Eviction
	}
	if c.EvictionPrivate == nil {
		c.EvictionPrivate = c.Eviction
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}
