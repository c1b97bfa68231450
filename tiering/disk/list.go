package disk

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Filter selects entries; zero fields select all.
type Filter struct {
	Kinds       func(tier.CheckpointKind) bool // nil = all
	Tenant      *tier.TenantID
	Fingerprint profile.Fingerprint
	Prefix      string // lower-case hex digits that the key begins with
}

// Info is one entry.
type Info struct {
	tier.Entry
	Model      string
	TenantName string // also of a tenant that is not configured now
	Payload    int64  // bytes behind the header, as stored
	Coded      bool
	Ranks      int
	RankBytes  int64
	Readers    int
	Children   int
	Created    time.Time
	LastUsed   time.Time
}

// Detail is an entry with where it lies and what its manifest tells.
type Detail struct {
	Info
	Runs     []slab.Run
	Manifest *extent.Manifest
}

// listBlock is how many entries are looked at under one hold of the lock: some
// 0.1 ms (guessed), for which lookups wait.
const listBlock = 4096

// List answers up to limit entries in ascending order of kind and key, beginning
// after a name (nil = from the start). It looks at all entries, a block of them
// under the lock at a time, so that a page is not a snapshot: what comes or goes
// meanwhile may or may not be in it.
func (t *Tier) List(f Filter, after *tier.Name, limit int) []Info {
	var page []Info
	for first := 0; limit > 0; first += listBlock {
		t.mu.Lock()
		places := t.ids.Places()
		if first >= len(places) {
			t.mu.Unlock()
			break
		}
		for _, e := range places[first:min(first+listBlock, len(places))] {
			if e == nil || e.phase != live || !f.match(e) || after != nil && compareNames(&e.Name, after) <= 0 {
				continue
			}
			page = insert(page, e, limit)
		}
		t.mu.Unlock()
	}
	return page
}

// insert puts an entry where it belongs in a page, if it is among the first limit.
func insert(page []Info, e *entry, limit int) []Info {
	i, twice := slices.BinarySearchFunc(page, &e.Name, func(a Info, n *tier.Name) int { return compareNames(&a.Name, n) })
	if i == limit || twice {
		return page
	}
	if len(page) == limit {
		page = page[:limit-1]
	}
	return slices.Insert(page, i, e.info())
}

func compareNames(a, b *tier.Name) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), bytes.Compare(a.Key[:], b.Key[:]))
}

func (f *Filter) match(e *entry) bool {
	return (f.Kinds == nil || f.Kinds(e.Kind)) && (f.Tenant == nil || *f.Tenant == e.owner.ID) &&
		(f.Fingerprint == profile.Fingerprint{} || f.Fingerprint == e.model.Fingerprint()) &&
		hasHexPrefix(&e.Key, f.Prefix)
}

// hasHexPrefix compares digit by digit, so that a filter over many entries makes
// no strings.
func hasHexPrefix(key *[32]byte, digits string) bool {
	if len(digits) > 2*len(key) {
		return false
	}
	for i := range len(digits) {
		nibble := key[i/2] >> 4
		if i%2 == 1 {
			nibble = key[i/2] & 15
		}
		if "0123456789abcdef"[nibble] != digits[i] {
			return false
		}
	}
	return true
}

func (e *entry) info() Info {
	n := 0
	for c := e.child; c != nil; c = c.next {
		n++
	}
	return Info{
		Entry: e.view(), Model: e.model.name, TenantName: e.owner.Name, Payload: e.payload, Coded: e.coded, Ranks: e.ranks,
		RankBytes: e.rankBytes, Readers: e.readers, Children: n, Created: e.created, LastUsed: e.used,
	}
}

// Detail answers one entry, its manifest from the catalogue. ErrGone when there is
// no such entry, ErrUnavailable when the catalogue does not answer. It is not a use.
func (t *Tier) Detail(ctx context.Context, n tier.Name) (*Detail, error) {
	t.mu.Lock()
	e := t.findLocked(&n)
	if e == nil {
		t.mu.Unlock()
		return nil, fmt.Errorf("disk: %x: %w", n.Key[:8], tier.ErrGone)
	}
	d := &Detail{Info: e.info(), Runs: slices.Clone(e.runs)}
	v := t.vol
	t.holdLocked(e)
	t.mu.Unlock()
	stored, ok, err := v.catalog.Manifest(extentName(n))
	t.mu.Lock()
	free := t.letGoLocked(e)
	t.mu.Unlock()
	if free {
		t.releaseSpace(v, e, e.runs)
	}
	if err == nil && ok {
		d.Manifest, err = extent.Decode(stored)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("disk: manifest of %x: %w: %w", n.Key[:8], err, tier.ErrUnavailable)
	case !ok:
		return nil, fmt.Errorf("disk: manifest of %x: %w", n.Key[:8], tier.ErrGone)
	}
	return d, ctx.Err()
}

// PoolUsage is one pool's account, in bytes of space, whole granules.
type PoolUsage struct {
	Name        string
	BudgetBytes int64
	UsedBytes   int64 // admitted writes included
	Entries     int   // the same
	Tenants     []TenantUsage
}

// TenantUsage is one tenant's share of a pool. Id 0 is a tenant that is not
// configured now.
type TenantUsage struct {
	Tenant
	UsedBytes int64
}

// Usage is how much is held, by pool, and how much there is.
type Usage struct {
	Pools        []PoolUsage
	LeavingBytes int64 // forgotten, not free yet
	FreeBytes    int64 // inside slab files
	SlabBytes    int64 // of slab files
	Slabs        []slab.SlabInfo
}

// Usage takes a snapshot.
func (t *Tier) Usage() Usage {
	t.mu.Lock()
	u := Usage{LeavingBytes: t.leaving}
	for _, p := range t.pools {
		info := PoolUsage{Name: p.name, BudgetBytes: p.budget, UsedBytes: p.used, Entries: p.entries}
		for _, a := range t.names {
			info.Tenants = append(info.Tenants, TenantUsage{a.Tenant, a.used[p.number]})
		}
		slices.SortFunc(info.Tenants, func(a, b TenantUsage) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Name, b.Name))
		})
		u.Pools = append(u.Pools, info)
	}
	v := t.vol
	t.mu.Unlock()
	if v != nil {
		u.FreeBytes, u.SlabBytes, u.Slabs = v.space.FreeBytes(), v.slabBytes.Load(), v.set.Slabs()
	}
	return u
}
