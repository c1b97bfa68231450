package disk

import (
	"cmp"
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

// Tenant is a tenant of the store and its name on disk.
type Tenant struct {
	ID   tier.TenantID // not 0
	Name string
}

// Config configures a Tier. A zero field that is not marked required takes the default
// that its comment states.
type Config struct {
	// Dir is the directory of the tier. It is created if its parent exists. Tests may
	// replace the file systems with Slabs and Index; then Dir is a name inside Index.
	Dir   string // required
	Slabs slab.FS
	Index vfs.FS

	// Existing makes Open refuse a directory that does not yet belong to a tier. Even if
	// Existing is false, a tier that has opened one directory never opens another directory
	// in its place.
	Existing bool

	// PublicBytes and PrivateBytes are the budgets of segments and of checkpoints. One of
	// them may be 0. The total size of the slab files never exceeds the sum of both.
	PublicBytes  int64
	PrivateBytes int64
	SlabBytes    int64 // size of a slab file; default 1 GiB, or less with smaller budgets
	GranuleBytes int64 // unit of space: a power of two from 4 KiB to 1 MiB; default 64 KiB
	ReserveBytes int64 // free space to leave on the file system; 0 = none

	Tenants []Tenant      // required, at least one
	Device  gpuipc.Device // required; the device of the store's arena
	Find    *find.Index   // index searched by the store; nil = a new one
	Held    *held.Set     // names of the node's objects, shared with the store; nil = not tracked

	// Coded lists the kinds of parts that are compressed with codec.Planes; default none.
	Coded []profile.PartKind

	Workers    int           // concurrent writes; also goroutines and transfers in parallel per read; default 4
	QueueBytes int64         // limit for the objects that wait to be written or are being written; default 256 MiB. A single object may exceed it
	QueueLen   int           // limit for the number of these objects; default 4096
	SyncEvery  time.Duration // longest time from logged to synced; default 5 seconds
	RetryMin   time.Duration // wait before the directory is tried again, doubled each time; default 1 second
	RetryMax   time.Duration // upper bound of that wait; default 1 minute
	DrainTime  time.Duration // how long Close continues to write started objects; default 10 seconds
	OpenLater  bool          // Open does not open the directory; Run does

	// Profile returns a registered profile, or nil. If the file of a profile cannot be
	// read, Profile may still return the profile, and the entries of this profile can be
	// served again. A nil function means that no profiles are registered.
	Profile  func(profile.Fingerprint) *profile.Profile
	Eviction func() policy.Eviction // creates an eviction policy; default policy.NewLRU
	Now      func() time.Time       // clock; default time.Now
	Log      zerolog.Logger
	// Changed is called with each state that the tier enters, and the cause. The tier holds
	// its lock during the call, so Changed must not block or call the tier; nil = no listener.
	Changed func(to State, cause error)
	// Evicted is called with each entry that is evicted, and the name of its model. The
	// parameter quota is true if the entry was evicted for its tenant's quota, and false if
	// it was evicted for room in its pool. The conditions of Changed apply.
	Evicted func(e *tier.Entry, model string, quota bool)

	ticks func() time.Time // clock that times running operations (volume.Operations); time.Now except in tests
}

const maxTenants = 1 << 16

// volume returns the options of volume.Open for this configuration.
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

// Defaults returns a Config with budgets of 64 and 16 GiB and defaults otherwise. The
// caller sets the required fields.
func Defaults() Config {
	return Config{PublicBytes: 64 << 30, PrivateBytes: 16 << 30, ReserveBytes: 1 << 30}.withDefaults()
}

// withDefaults sets zero fields to their defaults.
func (c Config) withDefaults() Config {
	c.GranuleBytes = cmp.Or(c.GranuleBytes, 64<<10)
	if total := c.PublicBytes + c.PrivateBytes; c.SlabBytes == 0 {
		c.SlabBytes = evenSlab(total, c.GranuleBytes)
	} else {
		c.SlabBytes = min(c.SlabBytes, total)
	}
	if c.GranuleBytes > 0 {
		c.SlabBytes -= c.SlabBytes % c.GranuleBytes
	}
	c.Workers = cmp.Or(c.Workers, 4)
	c.QueueBytes = cmp.Or(c.QueueBytes, 256<<20)
	c.QueueLen = cmp.Or(c.QueueLen, 4096)
	c.SyncEvery = cmp.Or(c.SyncEvery, 5*time.Second)
	c.RetryMin = cmp.Or(c.RetryMin, time.Second)
	c.RetryMax = cmp.Or(c.RetryMax, max(time.Minute, c.RetryMin))
	c.DrainTime = cmp.Or(c.DrainTime, 10*time.Second)
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

// defaultSlabBytes is large enough that a thousand slabs hold a terabyte, and small
// enough that allocating one slab does not delay writes for long (guessed).
const defaultSlabBytes = 1 << 30

// evenSlab returns the size of the slabs when total is divided into slabs of equal size,
// at most defaultSlabBytes.
func evenSlab(total, granule int64) int64 {
	n := max((total+defaultSlabBytes-1)/defaultSlabBytes, 1)
	return total / n
}
