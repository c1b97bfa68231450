package view

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Operators see one listing of segments and checkpoints over both tiers. It consists of the store's
// rows, which include copies on disk, and the rows of objects that are only on disk. Both lists are
// in ascending order of key, so that the first rows of both lists contain the first rows of all.

// Names of the disk codecs, as in the disk format's settings.
const (
	codecNone   = "none"
	codecPlanes = "planes-huff0"
)

// Segments implements api.Catalogue.
func (v *listing) Segments(q api.SegmentQuery) ([]api.Segment, error) {
	f := tiering.SegmentFilter{Prefix: q.Prefix}
	ok := false
	if f.Tenant, ok = v.tenant(q.Tenant); !ok {
		return nil, nil
	}
	if f.Profile, ok = profileFilter(q.Profile); !ok {
		return nil, nil
	}
	var list []api.Segment
	for _, s := range v.o.Store.Segments(f, (*profile.SegmentKey)(q.After), q.Limit) {
		list = append(list, v.segment(&s))
	}
	below, ok := v.below(f.Tenant, f.Profile)
	if !ok {
		return list, nil
	}
	below.Prefix = f.Prefix
	ids := v.profileIDs()
	for _, e := range v.listDisk(below, 0, q.After, q.Limit) {
		list = append(list, v.diskSegment(&e, ids))
	}
	// If both lists have a row of one key, the stable sort puts the store's row first, and the other
	// row is dropped.
	slices.SortStableFunc(list, func(a, b api.Segment) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	list = slices.CompactFunc(list, func(a, b api.Segment) bool { return a.Key == b.Key })
	return list[:min(len(list), q.Limit)], nil
}

// tenant converts a tenant's name to a filter. "" selects all tenants. For an unknown name it
// returns false.
func (v *base) tenant(name string) (*tier.TenantID, bool) {
	if name == "" {
		return nil, true
	}
	if t := v.o.Tenants.ByName(name); t != nil {
		return &t.ID, true
	}
	return nil, false
}

// profileFilter returns the store's filter for a profile id; nil = all profiles. It returns false
// for id 0, which no profile has: the store would take 0 for all.
func profileFilter(id *uint32) (tier.ProfileID, bool) {
	if id == nil {
		return 0, true
	}
	return tier.ProfileID(*id), *id != 0
}

// below returns the filter for the disk tier. It returns false if there is no disk tier, or if no
// entry can pass.
func (v *listing) below(t *tier.TenantID, id tier.ProfileID) (disk.Filter, bool) {
	f := disk.Filter{Tenant: t}
	if v.o.Disk == nil {
		return f, false
	}
	if id != 0 {
		p, ok := v.o.Store.Profile(id)
		if !ok {
			return f, false
		}
		f.Fingerprint = p.Fingerprint()
	}
	return f, true
}

// listDisk lists the disk's entries of one kind in order of key. It begins after the key in the
// parameter after; nil = with the first key.
func (v *listing) listDisk(f disk.Filter, kind tier.CheckpointKind, after *api.Digest, limit int) []disk.Info {
	f.Kinds = func(k tier.CheckpointKind) bool { return k == kind }
	var from *tier.Name
	if after != nil {
		from = &tier.Name{Kind: kind, Key: *after}
	}
	return v.o.Disk.List(f, from, limit)
}

// profileIDs returns the ids of the registered profiles, by fingerprint.
func (v *base) profileIDs() map[profile.Fingerprint]uint32 {
	ids := map[profile.Fingerprint]uint32{}
	for _, p := range v.o.Store.Profiles() {
		ids[p.Profile.Fingerprint()] = uint32(p.ID)
	}
	return ids
}

// residence says where an object is.
type residence struct {
	state     string
	tiers     []string
	level     string
	diskBytes int64
}

// residence returns where an object of the store is. The parameter copies is the number of its
// copies on devices, and the parameter lower the level of its copy on disk. If lower is 0, it has
// no copy on disk, and a disk entry of the same name belongs to another profile or tenant. An
// object that is being promoted is published, but only on disk until the promotion ends.
func (v *listing) residence(n tier.Name, inMemory, promoting bool, copies int, lower tier.Level) residence {
	r := residence{state: "pending", level: api.LevelMemory}
	if inMemory {
		r.state = "published"
		if copies > 0 {
			r.tiers = append(r.tiers, tierName(tier.PlaceHBM))
		}
		r.tiers = append(r.tiers, tierName(v.o.Place))
	}
	if v.o.Disk != nil && lower != 0 && (inMemory || promoting) {
		if e, ok := v.o.Disk.Lookup(&n); ok {
			r.tiers, r.level, r.diskBytes = append(r.tiers, tierName(tier.PlaceDisk)), e.Level.String(), e.Bytes
		}
	}
	if promoting {
		r.state = "published"
	}
	return r
}

func (v *listing) segment(s *tiering.SegmentInfo) api.Segment {
	r := v.residence(tier.Name{Key: s.Key}, s.Published, s.Promoting, s.HBM, s.Lower)
	return api.Segment{
		Key: api.Digest(s.Key), Profile: uint32(s.Profile), Model: s.Model, Tenant: v.o.Tenants.NameOf(s.Tenant),
		State: r.state, Tiers: r.tiers, Level: r.level, Role: s.Spec.Role.String(), Tokens: s.Spec.Tokens, Interior: s.Interior,
		Bytes: s.Bytes, DiskBytes: r.diskBytes, Leases: s.Leases, Hits: s.Hits, Publisher: s.Publisher, Created: s.Created, LastUsed: s.LastUsed,
		Primer: digestOf(s.Spec.Primer), Packed: v.packed(s.Packed, s.Profile, s.Interior),
	}
}

// digestOf returns a digest as shown to operators; nil for zero, which stands for none.
func digestOf(hash [32]byte) *api.Digest {
	if hash == ([32]byte{}) {
		return nil
	}
	return new(api.Digest(hash))
}

// packed describes the packed parts of a segment; nil = it is not packed.
func (v *listing) packed(how profile.Packed, id tier.ProfileID, interior int) *api.Packed {
	if how == "" {
		return nil
	}
	transition, state := how.Errors()
	out := &api.Packed{TransitionError: float64(transition), StateError: float64(state)}
	if p, ok := v.o.Store.Profile(id); ok {
		out.PlainBytes = p.SegmentLayout(interior).Bytes * int64(p.TPSize())
	}
	return out
}

// diskSegment returns the row of a segment that is only on disk.
func (v *listing) diskSegment(e *disk.Info, ids map[profile.Fingerprint]uint32) api.Segment {
	return api.Segment{
		Key: api.Digest(e.Key), Profile: ids[e.Fingerprint], Model: e.Model, Tenant: e.TenantName,
		State: "published", Tiers: []string{tierName(tier.PlaceDisk)}, Level: e.Level.String(),
		Role: e.Spec.Role.String(), Tokens: e.Spec.Tokens, Interior: e.End - e.Begin,
		Bytes: e.RankBytes * int64(e.Ranks), DiskBytes: e.Bytes, Created: e.Created, LastUsed: e.LastUsed,
		Primer: digestOf(e.Spec.Primer), Packed: v.packed(e.Packed, tier.ProfileID(ids[e.Fingerprint]), e.End-e.Begin),
	}
}

// Segment implements api.Catalogue.
func (v *listing) Segment(key api.Digest) (api.SegmentDetail, error) {
	s, ok := v.o.Store.Segment(profile.SegmentKey(key))
	if !ok {
		return v.segmentOnDisk(key)
	}
	d := api.SegmentDetail{Segment: v.segment(&s.SegmentInfo), HeadExcluded: s.Spec.Head, TailExcluded: s.Spec.Tail}
	for rank, extents := range s.Extents {
		d.Extents += len(extents)
		d.Parts = append(d.Parts, partsOfRank(rank, s.Layout)...)
	}
	if d.DiskBytes > 0 {
		if e, err := v.detail(key); err == nil {
			d.DiskExtents, d.Codec = len(e.Runs), codecOf(&e.Info)
		}
	}
	if p, ok := v.o.Store.Profile(s.Profile); ok {
		v.countCopies(&d, p.Fingerprint(), s.Tenant)
	}
	return d, nil
}

// countCopies adds how many other nodes have a copy, and whether the object store has one.
func (v *listing) countCopies(d *api.SegmentDetail, f profile.Fingerprint, t tier.TenantID) {
	if v.o.Copies != nil {
		d.OtherNodes, d.ObjectStore = v.o.Copies(f, t, tier.Name{Key: d.Key})
	}
}

// segmentOnDisk returns the details of a segment that is only on disk. Its parts are known only
// while its profile is registered.
func (v *listing) segmentOnDisk(key api.Digest) (api.SegmentDetail, error) {
	e, err := v.detail(key)
	if err != nil {
		return api.SegmentDetail{}, err
	}
	d := api.SegmentDetail{
		Segment: v.diskSegment(&e.Info, v.profileIDs()), HeadExcluded: e.Spec.Head, TailExcluded: e.Spec.Tail,
		DiskExtents: len(e.Runs), Codec: codecOf(&e.Info),
	}
	d.Publisher = e.Manifest.Publisher
	v.countCopies(&d, e.Fingerprint, e.Tenant)
	if p, ok := v.o.Store.Profile(tier.ProfileID(d.Profile)); ok {
		l, err := p.PackedLayout(d.Interior, e.Manifest.Packed)
		if err != nil {
			return api.SegmentDetail{}, fmt.Errorf("segment %v: %w", key, err)
		}
		for rank := range e.Ranks {
			d.Parts = append(d.Parts, partsOfRank(rank, l)...)
		}
	}
	return d, nil
}

// detailTimeout is the longest time that an operator's request waits for the disk.
const detailTimeout = 5 * time.Second

func (v *listing) detail(key api.Digest) (*disk.Detail, error) {
	if v.o.Disk == nil {
		return nil, api.NotFound("no such segment")
	}
	ctx, cancel := context.WithTimeout(context.Background(), detailTimeout)
	defer cancel()
	e, err := v.o.Disk.Detail(ctx, tier.Name{Key: key})
	switch {
	case errors.Is(err, tier.ErrGone):
		return nil, api.NotFound("no such segment")
	case err != nil:
		return nil, errkind.With(err, api.ErrUnavailable)
	}
	return e, nil
}

func codecOf(e *disk.Info) string {
	if e.Coded {
		return codecPlanes
	}
	return codecNone
}

func partsOfRank(rank int, l profile.Layout) []api.SegmentPart {
	var list []api.SegmentPart
	for _, p := range l.Parts {
		list = append(list, api.SegmentPart{
			Rank: rank, Layer: p.Layer, Kind: strings.ToLower(p.Kind.String()), DType: strings.ToLower(p.DType.String()),
			Shape: shapeOf(p), Bytes: p.Len,
		})
	}
	return list
}

// shapeOf returns the shape without trailing dimensions of 1. At least one dimension stays.
func shapeOf(p profile.Part) []int {
	n := len(p.Shape)
	for n > 1 && p.Shape[n-1] <= 1 {
		n--
	}
	return slices.Clone(p.Shape[:n])
}

// Checkpoints implements api.Catalogue.
func (v *listing) Checkpoints(q api.CheckpointQuery) ([]api.Checkpoint, error) {
	var f tiering.CheckpointFilter
	ok := false
	if f.Tenant, ok = v.tenant(q.Tenant); !ok {
		return nil, nil
	}
	if f.Profile, ok = profileFilter(q.Profile); !ok {
		return nil, nil
	}
	list := v.checkpointsInMemory(f, (*profile.PrefixHash)(q.After), q.Limit)
	below, ok := v.below(f.Tenant, f.Profile)
	if !ok {
		return list, nil
	}
	ids := v.profileIDs()
	for _, kind := range tier.Kinds {
		for _, e := range v.listDisk(below, kind, q.After, q.Limit) {
			list = append(list, diskCheckpoint(&e, ids))
		}
	}
	order := func(a, b api.Checkpoint) int {
		return cmp.Or(bytes.Compare(a.Hash[:], b.Hash[:]), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Profile, b.Profile))
	}
	slices.SortStableFunc(list, order)
	list = slices.CompactFunc(list, func(a, b api.Checkpoint) bool { return order(a, b) == 0 })
	n := min(len(list), q.Limit)
	for 0 < n && n < len(list) && list[n].Hash == list[n-1].Hash {
		n++ // rows of one hash stay on one page
	}
	return list[:n], nil
}

func (v *listing) checkpointsInMemory(f tiering.CheckpointFilter, after *profile.PrefixHash, limit int) []api.Checkpoint {
	var list []api.Checkpoint
	for {
		// Pending checkpoints are skipped, so that one page of the store may be too short for this page.
		page := v.o.Store.Checkpoints(f, after, limit)
		for i := range page {
			if page[i].Published || page[i].Promoting {
				list = append(list, v.checkpoint(&page[i]))
			}
		}
		if len(page) < limit || len(list) >= limit {
			return list
		}
		after = &page[len(page)-1].Hash
	}
}

func (v *listing) checkpoint(c *tiering.CheckpointInfo) api.Checkpoint {
	r := v.residence(tier.Name{Kind: c.Kind, Key: c.Hash}, c.Published, c.Promoting, c.HBM, c.Lower)
	return api.Checkpoint{
		Hash: api.Digest(c.Hash), Parent: digestOf(c.Parent), Profile: uint32(c.Profile), Model: c.Model, Tenant: v.o.Tenants.NameOf(c.Tenant),
		Kind: kindName(c.Kind), Tiers: r.tiers, Level: r.level, Tokens: c.Tokens, Rows: c.Tokens - c.Begin,
		Bytes: c.Bytes, DiskBytes: r.diskBytes, Leases: c.Leases, Children: c.Children, Thinned: c.Stripped, Created: c.Created, LastUsed: c.LastUsed,
	}
}

// diskCheckpoint returns the row of a checkpoint that is only on disk.
func diskCheckpoint(e *disk.Info, ids map[profile.Fingerprint]uint32) api.Checkpoint {
	return api.Checkpoint{
		Hash: api.Digest(e.Key), Parent: digestOf(e.Parent.Key), Profile: ids[e.Fingerprint], Model: e.Model, Tenant: e.TenantName,
		Kind: kindName(e.Kind), Tiers: []string{tierName(tier.PlaceDisk)}, Level: e.Level.String(), Tokens: e.End, Rows: e.End - e.Begin,
		Bytes: e.RankBytes * int64(e.Ranks), DiskBytes: e.Bytes, Children: e.Children, Created: e.Created, LastUsed: e.LastUsed,
	}
}

func kindName(k tier.CheckpointKind) string {
	switch k {
	case tier.Spliced:
		return "spliced"
	case tier.Rows:
		return "rows"
	}
	return "exact"
}

// Remove implements api.Catalogue.
func (v *listing) Remove(key api.Digest) error {
	was, _ := v.o.Store.Segment(profile.SegmentKey(key))
	err := v.o.Store.Evict(profile.SegmentKey(key))
	switch {
	case err == nil:
		v.tellRemoved(key, &was.SegmentInfo)
	case errors.Is(err, tier.ErrGone):
		return api.NotFound("no such segment")
	}
	return kindOf(err)
}
