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

// Filter selects the entries that match all of its fields; a zero field matches every entry.
type Filter struct {
	Kinds       func(tier.CheckpointKind) bool // nil = all
	Tenant      *tier.TenantID
	Fingerprint profile.Fingerprint
	Prefix      string // lower-case hex digits that the key begins with
}

// Info describes one entry for operators.
type Info struct {
	tier.Entry
	Model      string
	TenantName string // even of a tenant that is not configured now
	Payload    int64  // bytes after the header, as stored
	Coded      bool
	Ranks      int
	RankBytes  int64
	Readers    int
	Created    time.Time
	LastUsed   time.Time
}

// Detail is an entry with its location and manifest.
type Detail struct {
	Info
	Runs     []slab.Run
	Manifest *extent.Manifest
}

// List returns up to limit entries in ascending order of kind and key, starting after a
// name (nil = from the start). It scans all entries and releases the lock after every few
// entries, so the result is not a snapshot: an entry that is added or removed during the
// scan may be listed or not.
func (t *core) List(f Filter, after *tier.Name, limit int) []Info {
	var page []Info
	found := make([]Info, 0, rowsAtOnce)
	for first, more := 0, limit > 0; more; first += rowsAtOnce {
		var last *tier.Name
		if len(page) == limit {
			last = &page[limit-1].Name
		}
		found, more = t.look(f, after, last, first, found[:0])
		for _, info := range found {
			page = insert(page, info, limit)
		}
	}
	return page
}

// look examines rowsAtOnce places of the table, beginning with number first. It appends to
// found the matching entries whose names are between after and last (nil = no bound). It
// returns false when no places are left.
func (t *core) look(f Filter, after, last *tier.Name, first int, found []Info) ([]Info, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	places := t.ids.Places()
	if first >= len(places) {
		return found, false
	}
	for _, e := range places[first:min(first+rowsAtOnce, len(places))] {
		if e == nil || !e.phase.live() || !f.match(e) {
			continue
		}
		if n := e.name(); (after == nil || compareNames(&n, after) > 0) && (last == nil || compareNames(&n, last) < 0) {
			found = append(found, e.info())
		}
	}
	return found, true
}

// insert inserts an entry into a sorted page of at most limit entries. It drops the last
// one of a full page, or info itself if that would come last.
func insert(page []Info, info Info, limit int) []Info {
	i, twice := slices.BinarySearchFunc(page, &info.Name, func(a Info, n *tier.Name) int { return compareNames(&a.Name, n) })
	if i == limit || twice {
		return page
	}
	if len(page) == limit {
		page = page[:limit-1]
	}
	return slices.Insert(page, i, info)
}

func compareNames(a, b *tier.Name) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), bytes.Compare(a.Key[:], b.Key[:]))
}

func (f *Filter) match(e *entry) bool {
	return (f.Kinds == nil || f.Kinds(tier.CheckpointKind(e.Kind))) && (f.Tenant == nil || *f.Tenant == e.owner.ID) &&
		(f.Fingerprint == profile.Fingerprint{} || f.Fingerprint == e.Fingerprint) &&
		tier.HasHexPrefix(&e.Key, f.Prefix)
}

func (e *entry) info() Info {
	return Info{
		Entry: e.view(), Model: e.model.name, TenantName: e.owner.Name, Payload: e.PayloadBytes, Coded: e.Coded, Ranks: e.Ranks,
		RankBytes: e.RankBytes, Readers: e.readers, Created: time.Unix(0, e.Created), LastUsed: e.used,
	}
}

// Detail returns an entry with its manifest from the catalogue. Calling it does not count
// as a use of the entry. ErrGone means that there is no such entry, and ErrUnavailable that
// the manifest cannot be read.
func (t *core) Detail(ctx context.Context, n tier.Name) (*Detail, error) {
	t.mu.Lock()
	e := t.findLocked(&n)
	if e == nil {
		t.mu.Unlock()
		return nil, fmt.Errorf("disk: %x: %w", n.Key[:8], tier.ErrGone)
	}
	d := &Detail{Info: e.info(), Runs: slices.Clone(e.Runs)}
	m := t.mount
	t.holdLocked(e)
	t.mu.Unlock()
	stored, ok, err := m.Catalog.Manifest(e.Name)
	t.letGo(m, e)
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

// PoolUsage is the use of one pool. Its bytes count whole granules.
type PoolUsage struct {
	Name        string
	BudgetBytes int64
	UsedBytes   int64 // admitted writes included
	Entries     int   // admitted writes included
	Tenants     []TenantUsage
}

// TenantUsage is one tenant's share of a pool. Id 0 stands for a tenant that is not
// configured now.
type TenantUsage struct {
	Tenant
	UsedBytes int64 // charged bytes: the space of each entry, and its header once more for its rows
}

// Usage is the space used by each pool, and the space available.
type Usage struct {
	Pools        []PoolUsage
	LeavingBytes int64 // of forgotten entries whose space is not free yet
	FreeBytes    int64 // free space inside slab files
	SlabBytes    int64 // of slab files
	Slabs        []slab.SlabInfo
}

// Usage returns a snapshot of each pool. It reads a few tenants at a time, so their sum
// may differ from the pool's UsedBytes.
func (t *core) Usage() Usage {
	t.mu.Lock()
	u := Usage{LeavingBytes: t.leaving}
	accounts, m := t.accounts, t.mount
	for _, p := range t.pools {
		u.Pools = append(u.Pools, PoolUsage{Name: p.name, BudgetBytes: p.budget, UsedBytes: p.used, Entries: p.entries})
	}
	t.mu.Unlock()
	t.mu.Each(len(accounts), rowsAtOnce, func(i int) {
		for n := range u.Pools {
			u.Pools[n].Tenants = append(u.Pools[n].Tenants, TenantUsage{accounts[i].Tenant, accounts[i].used[n]})
		}
	})
	for _, p := range u.Pools {
		slices.SortFunc(p.Tenants, func(a, b TenantUsage) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Name, b.Name))
		})
	}
	if m != nil {
		u.FreeBytes, u.SlabBytes, u.Slabs = m.Space.FreeBytes(), m.SlabBytes(), m.Slabs()
	}
	return u
}
