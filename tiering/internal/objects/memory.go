package objects

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Bytes of the daemon's heap per object, in addition to pages and token ids. The number of
// pages does not bound them: a stripped checkpoint of a model without rows has no pages
// left, and each leaf can have a chain of such ancestors.
const (
	// objectBytes covers an object and its records in the catalog, the table and the policies,
	// with a quota and a lower tier: 1,000 bytes (measured, and checked by a test), rounded up.
	objectBytes = 1280
	// shareBytes covers a rank's share and the extents that it has in addition to whole
	// pages: a hole at either end.
	shareBytes  = 96
	digestBytes = 8
)

func recordBytes(shares, digests int) int64 {
	return objectBytes + int64(shares)*(shareBytes+digestBytes*int64(digests))
}

// Memory is the arena: its pages, and where the bytes of objects lie in it.
type Memory struct {
	cfg   *Options
	Pages *gpuipc.PageAllocator
}

// PagesOf rounds one rank's layout up to whole pages.
func (mem *Memory) PagesOf(bytes int64) int64 {
	page := int64(mem.cfg.PageBytes)
	return (bytes + page - 1) / page * page
}

// SizeOf returns the size in memory of an object with a layout and a number of token ids.
func (mem *Memory) SizeOf(p *Profile, l *plan.PartMap, tokens int) Size {
	ranks, ids := int64(p.Ranks), 4*int64(tokens)
	z := Size{
		RankBytes: l.Bytes, Bytes: l.Bytes*ranks + ids, PageBytes: mem.PagesOf(l.Bytes)*ranks + ids,
		RecordBytes: recordBytes(p.Ranks, l.Chunks()),
	}
	for _, run := range l.StatePages {
		z.StateBytes += run.Len * ranks
		z.StatePages += mem.PagesOf(run.Len) * ranks
	}
	return z
}

// Measure sets the size of an object, token ids included.
func (mem *Memory) Measure(o *Object) {
	o.Shares = make([]Share, o.Profile.Ranks)
	o.Size = mem.SizeOf(o.Profile, o.Layout(), o.Spec.Tokens)
}

// MeasureBuffer sets the size of a buffer in memory, which belongs to one rank.
func (mem *Memory) MeasureBuffer(o *Object, bytes int64) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: mem.PagesOf(bytes), RecordBytes: recordBytes(1, 0)}
}

// Allocate allocates the given number of bytes for each rank of a new object. The caller
// has made room before. So if there is no memory, the accounts are wrong, and Allocate
// panics.
func (mem *Memory) Allocate(o *Object, bytes int64) {
	for i := range o.Shares {
		o.Shares[i].Extents = mem.allocate(o, bytes)
	}
}

func (mem *Memory) allocate(o *Object, bytes int64) []gpuipc.Extent {
	extents, err := mem.Pages.Alloc(bytes)
	if err != nil {
		panic(fmt.Sprintf("objects: %s pool uses %d of %d bytes, yet: %v", o.Pool.Name, o.Pool.Used, o.Pool.Budget, err))
	}
	return trim(extents, bytes)
}

// free frees pages that allocate returned, and skips holes. It works on a copy
// of the extents, since a reply that contains them may still be on its way to a client.
func (mem *Memory) free(extents []gpuipc.Extent) {
	whole := make([]gpuipc.Extent, 0, len(extents))
	for _, e := range extents {
		if e.Off != Hole {
			whole = append(whole, gpuipc.Extent{Off: e.Off, Len: mem.PagesOf(e.Len)})
		}
	}
	mem.Pages.Free(whole)
}

// cut splits a share's extents into its first bytes (kept) and the whole pages after them
// (given).
func (mem *Memory) cut(extents []gpuipc.Extent, bytes int64) (kept, given []gpuipc.Extent) {
	for _, e := range extents {
		n := min(e.Len, bytes)
		if n > 0 {
			kept = append(kept, gpuipc.Extent{Off: e.Off, Len: n})
		}
		bytes -= n
		if whole := mem.PagesOf(n); whole < e.Len {
			given = append(given, gpuipc.Extent{Off: e.Off + whole, Len: e.Len - whole})
		}
	}
	return kept, given
}

// Ref returns the bytes of a share in memory as a reference for the device.
func (mem *Memory) Ref(sh *Share) gpuipc.Ref {
	return gpuipc.Ref{Region: mem.cfg.Arena, Extents: sh.Extents}
}

// regionOf returns the region of an object's extents.
func (mem *Memory) regionOf(o *Object) gpuipc.Region {
	if o.InHBM() {
		return o.Pool.Device.arena
	}
	return mem.cfg.Arena
}

// ShareOf returns one rank's bytes as a reference, in memory or in HBM.
func (mem *Memory) ShareOf(o *Object, rank int) gpuipc.Ref {
	return gpuipc.Ref{Region: mem.regionOf(o), Extents: o.Shares[rank].Extents}
}

// PlaceOf returns the place reported with a lease of an object.
func (mem *Memory) PlaceOf(o *Object) tier.Place {
	if o.InHBM() {
		return tier.PlaceHBM
	}
	return mem.cfg.Place
}

// Describe returns the description of an object that a Tier gets.
func (mem *Memory) Describe(o *Object) *tier.Object {
	d := &tier.Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile.Profile, Tenant: o.Tenant.ID, Publisher: o.Publisher, Created: o.Created,
		Spec: o.Spec, Tokens: o.TokenIDs, Hash: o.Hash, Packed: o.Packed, Begin: o.Begin, End: o.End,
		Shares: make([]tier.Share, len(o.Shares)),
	}
	if o.Extends != (profile.PrefixHash{}) {
		d.Parent = tier.Name{Kind: o.ExtendsKind, Key: o.Extends}
	}
	for i := range o.Shares {
		d.Shares[i] = tier.Share{Ref: mem.Ref(&o.Shares[i]), Digests: o.Shares[i].Digests}
	}
	return d
}
