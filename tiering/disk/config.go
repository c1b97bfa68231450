package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tenant is a tenant as the store knows it and the name it has on disk.
type Tenant struct {
	ID   tier.TenantID // not 0
	Name string
}

// Config opens a Tier. The zero value of a field that is not marked required
// takes the default that is named with it.
type Config struct {
	// Dir is the directory of the tier; it is made when its parent is there.
	// Slabs and Index stand in for it where a test brings file systems of its
	// own; then Dir is a name inside Index.
	Dir   string // required
	Slabs slab.FS
	Index vfs.FS

	// Existing leaves a directory closed that is not that of a tier already. Once one was
	// opened no other is opened in its place.
	Existing bool

	// Budgets in bytes of segments and of checkpoints. One may be 0. Slab files
	// together are never larger than their sum.
	PublicBytes  int64
	PrivateBytes int64
	SlabBytes    int64 // of a slab file; 1 GiB, or less where the budgets are
	GranuleBytes int64 // unit of space: a power of two from 4 KiB to 1 MiB; 64 KiB
	ReserveBytes int64 // that the file system keeps free; 0 = none

	Tenants []Tenant      // required, at least one
	Device  gpuipc.Device // required; of the store's arena
	Find    *find.Index   // that the store looks into; nil = one of the tier's own
	Held    *held.Set     // that is told what the tier holds, the store's too; nil = nobody asks

	// Coded names the parts that are stored by codec.Planes, by kind; none.
	Coded []profile.PartKind

	Workers    int           // transfers at once, of writing and again of reading; 4
	QueueBytes int64         // of objects admitted and not yet written; 256 MiB. One object may be larger
	QueueLen   int           // of the same, objects; 4096
	SyncEvery  time.Duration // until what is logged is synced; 5 seconds
	RetryMin   time.Duration // before the directory is tried again, doubled each time; 1 second
	RetryMax   time.Duration // 1 minute
	DrainTime  time.Duration // how long Close goes on with what was admitted; 10 seconds
	OpenLater  bool          // leave the first attempt to Run

	// Profile returns a profile that is registered now, nil if it is not. Entries whose
	// own file of it cannot be read are served again with that. nil = no profile is.
	Profile  func(profile.Fingerprint) *profile.Profile
	Eviction func() policy.Eviction // policy.NewLRU
	Now      func() time.Time       // time.Now
	Log      zerolog.Logger
	// Changed hears of each state that the tier enters, and why. It is called with the
	// tier's lock held and must not wait; nil = nobody listens.
	Changed func(to State, cause error)
	// Evicted hears of each entry of a model that leaves for room, or for its tenant's quota.
	// It is called as Changed.
	Evicted func(e *tier.Entry, model string, quota bool)

	ticks func() time.Time // of running operations; time.Now but in tests
}

const maxTenants = 1 << 16

// volume is how the directory is opened.
func (c *Config) volume() volume.Options {
	return volume.Options{
		Dir: c.Dir, Slabs: c.Slabs, Index: c.Index, GranuleBytes: c.GranuleBytes, SlabBytes: c.SlabBytes, Existing: c.Existing,
		Width: c.Workers, Log: c.Log, Now: c.ticks,
	}
}

// Validate lists every problem of the configuration at once.
func (c *Config) Validate() error {
	var bad []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf("disk: "+format+": %w", append(args, tier.ErrInvalid)...))
		}
	}
	g := c.GranuleBytes
	check(c.Dir != "", "no directory")
	check((c.Slabs == nil) == (c.Index == nil), "one of two file systems is given")
	check(c.Device != nil, "no device")
	check(g >= slab.MinGranule && g <= slab.MaxGranule && g&(g-1) == 0,
		"granule of %d bytes is not a power of two from %d to %d", g, slab.MinGranule, slab.MaxGranule)
	check(c.PublicBytes >= 0 && c.PrivateBytes >= 0 && c.ReserveBytes >= 0,
		"budgets of %d and %d bytes, reserve of %d", c.PublicBytes, c.PrivateBytes, c.ReserveBytes)
	check(c.PublicBytes+c.PrivateBytes >= 2*g, "budgets of %d and %d bytes hold no granule of %d beside a header", c.PublicBytes, c.PrivateBytes, g)
	check(c.SlabBytes >= 2*g && c.SlabBytes <= c.PublicBytes+c.PrivateBytes,
		"slab of %d bytes, granule %d, budgets %d", c.SlabBytes, g, c.PublicBytes+c.PrivateBytes)
	check(c.Workers > 0 && c.QueueBytes > 0 && c.QueueLen > 0, "%d workers, queue of %d bytes and %d objects", c.Workers, c.QueueBytes, c.QueueLen)
	check(c.SyncEvery > 0 && c.RetryMin > 0 && c.RetryMin <= c.RetryMax && c.DrainTime > 0,
		"sync every %v, retry after %v to %v, drain for %v", c.SyncEvery, c.RetryMin, c.RetryMax, c.DrainTime)
	check(len(c.Tenants) > 0 && len(c.Tenants) <= maxTenants, "%d tenants", len(c.Tenants))
	ids, names := map[tier.TenantID]bool{}, map[string]bool{}
	for _, t := range c.Tenants {
		check(t.ID != 0 && !ids[t.ID], "tenant %q: id %d is 0 or taken", t.Name, t.ID)
		check(!names[t.Name], "tenant %q: name is taken", t.Name)
		ids[t.ID], names[t.Name] = true, true
	}
	for _, k := range c.Coded {
		check(k >= profile.PartT && k <= profile.PartV, "codec of part kind %d", k)
	}
	return errors.Join(bad...)
}

// Defaults are those of a Config for a directory that is large enough.
func Defaults() Config {
	return Config{PublicBytes: 64 << 30, PrivateBytes: 16 << 30, ReserveBytes: 1 << 30}.withDefaults()
}

// withDefaults fills what was left zero.
func (c Config) withDefaults() Config {
	setDefault(&c.GranuleBytes, 64<<10)
	if total := c.PublicBytes + c.PrivateBytes; c.SlabBytes == 0 {
		c.SlabBytes = evenSlab(total, c.GranuleBytes)
	} else {
		c.SlabBytes = min(c.SlabBytes, total)
	}
	if c.GranuleBytes > 0 {
		c.SlabBytes -= c.SlabBytes % c.GranuleBytes
	}
	setDefault(&c.Workers, 4)
	setDefault(&c.QueueBytes, 256<<20)
	setDefault(&c.QueueLen, 4096)
	setDefault(&c.SyncEvery, 5*time.Second)
	setDefault(&c.RetryMin, time.Second)
	setDefault(&c.RetryMax, max(time.Minute, c.RetryMin))
	setDefault(&c.DrainTime, 10*time.Second)
	if c.Find == nil {
		c.Find = &find.Index{}
	}
	if c.Eviction == nil {
		c.Eviction = policy.NewLRU
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.ticks == nil {
		c.ticks = time.Now
	}
	return c
}

// defaultSlabBytes: large enough that a thousand files hold a terabyte, small
// enough that allocating one does not hold writes up for long (guessed).
const defaultSlabBytes = 1 << 30

// evenSlab cuts a budget into slabs of equal size, at most the default.
func evenSlab(total, granule int64) int64 {
	n := max((total+defaultSlabBytes-1)/defaultSlabBytes, 1)
	return total / n
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
