package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rebuild creates a new catalogue from the extents in the slabs.
func (o *directory) rebuild(ctx context.Context, opts CheckOptions) error {
	anothers := func(r slab.Refusal) bool { return errors.Is(r.Err, slab.ErrStore) }
	if len(o.Slabs()) == 0 && slices.ContainsFunc(o.Refused(), anothers) {
		return volume.ErrFormat // a new catalogue would have nothing
	}
	list, err := o.scan(ctx, opts)
	if err != nil {
		return err
	}
	if !o.own && o.strange {
		return volume.ErrKey
	}
	kept := o.choose(list, nil)
	if err := o.mend(); err != nil {
		return err
	}
	o.report.Rebuilt = true
	o.report.Forgotten = len(list) - len(kept)
	if err := o.BeginCatalog(); err != nil {
		return err
	}
	if err := o.fill(ctx, highest(list, nil), kept); err != nil {
		return err
	}
	o.report.KeptIndex, err = o.ExchangeCatalog()
	return err
}

// highest returns the highest generation of extents and rows.
func highest(list []*payload.Extent, rows []catalog.Row) (last uint64) {
	for _, f := range list {
		last = max(last, f.Generation)
	}
	for i := range rows {
		last = max(last, rows[i].Generation)
	}
	return last
}

// scan finds all extents whose payloads verify. An intact header is not enough, since its
// extent may have been forgotten and partly overwritten.
func (o *directory) scan(ctx context.Context, opts CheckOptions) (list []*payload.Extent, err error) {
	bad := func(at slab.Run, err error) {
		o.report.problem(Problem{Slab: at.Slab, Off: at.Off, What: text(err)})
	}
	err = o.eachHeader(ctx, opts, bad, func(at slab.Run) {
		f, err := payload.ReadExtent(o, []slab.Run{at})
		if err == nil {
			err = o.candidate(ctx, f)
		}
		if err != nil {
			bad(at, err)
			return
		}
		list = append(list, f)
		o.report.PayloadBytes += f.PayloadBytes
	})
	return list, err
}

// rowless finds the extents that verify, have no row and do not overlap the space of any
// row. Their entries were either removed, and the space was not reused, or were lost with
// a part of the catalogue. The two cases cannot be distinguished.
func (o *directory) rowless(ctx context.Context, rows []catalog.Row, opts CheckOptions) (list []*payload.Extent, err error) {
	there := namesOf(rows)
	err = o.eachHeader(ctx, opts, func(slab.Run, error) {}, func(at slab.Run) {
		f, err := payload.ReadExtent(o, []slab.Run{at})
		if err != nil || there[f.Name] || o.Space.Take(f.Runs) != nil {
			return
		}
		o.Space.Free(f.Runs)
		if o.candidate(ctx, f) == nil {
			list = append(list, f)
		}
	})
	return list, err
}

func namesOf(rows []catalog.Row) map[extent.Name]bool {
	names := make(map[extent.Name]bool, len(rows))
	for i := range rows {
		names[rows[i].Name] = true
	}
	return names
}

// takeUp adds rows for the extents that have none.
func (o *directory) takeUp(ctx context.Context, rows []catalog.Row, opts CheckOptions) error {
	list, err := o.rowless(ctx, rows, opts)
	if err != nil {
		return err
	}
	kept := o.choose(list, namesOf(rows))
	o.report.TakenUp = len(kept)
	return o.fill(ctx, highest(list, rows), kept)
}

// eachHeader calls f for every granule that begins with a header. The argument of f is the
// run from the granule to the end of the slab. For every granule that cannot be read,
// eachHeader calls bad.
func (o *directory) eachHeader(ctx context.Context, opts CheckOptions, bad func(slab.Run, error), f func(slab.Run)) error {
	var done int64
	for _, s := range o.Slabs() {
		for at := o.Format.Granule; at < s.Bytes; at += window {
			n := min(window, s.Bytes-at)
			for _, off := range o.starts(s, at, n, bad) {
				f(slab.Run{Slab: s.Number, Off: off, Len: s.Bytes - off})
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
			opts.progress(done+at+n, o.report.SlabBytes)
		}
		done += s.Bytes
	}
	return ctx.Err()
}

// window is the number of bytes read at once while a slab is searched for headers.
const window = 8 << 20

// The method starts searches n bytes of slab s, beginning at offset at. It returns the
// offsets of the granules that begin with a header. If it cannot read all bytes at once, it
// reads each granule separately.
func (o *directory) starts(s slab.SlabInfo, at, n int64, bad func(slab.Run, error)) (offs []int64) {
	buf := slab.AlignedBuffer(int(n &^ (slab.BlockBytes - 1)))
	whole := o.Read([]slab.Run{{Slab: s.Number, Off: at, Len: int64(len(buf))}}, 0, [][]byte{buf}) == nil
	for i := int64(0); i+slab.BlockBytes <= int64(len(buf)); i += o.Format.Granule {
		block := buf[i : i+slab.BlockBytes]
		if !whole {
			one := slab.Run{Slab: s.Number, Off: at + i, Len: slab.BlockBytes}
			if err := o.Read([]slab.Run{one}, 0, [][]byte{block}); err != nil {
				bad(one, err)
				continue
			}
		}
		if _, err := extent.Parse(block); err == nil {
			offs = append(offs, at+i)
		}
	}
	return offs
}

// candidate returns nil if an extent can become an entry. Otherwise it returns the reason:
// its profile or kind is not known, or it does not verify.
func (o *directory) candidate(ctx context.Context, f *payload.Extent) error {
	p := o.profiles[f.Manifest.Fingerprint]
	if p == nil {
		return fmt.Errorf("extent %v of profile %x, which is not here", f.Name, f.Manifest.Fingerprint[:8])
	}
	if !tier.CheckpointKind(f.Kind).Known(p) {
		return fmt.Errorf("extent %v of an unknown kind", f.Name)
	}
	err := f.Verify(ctx, o, p, o.Key, runtime.GOMAXPROCS(0))
	switch f.Says(o.Key, err) {
	case payload.Own:
		o.own = true
	case payload.Strange:
		o.strange = true
	}
	if err != nil {
		return fmt.Errorf("extent %v: %w", f.Name, err)
	}
	return nil
}

// choose decides which extents become entries, and reports the others. Among extents of one
// name it keeps the highest generation. Extents that verify share no space, unless a
// payload contains bytes that look like an extent; so it drops an extent that begins inside
// another one. The keys of the map there are the names that already have rows.
func (o *directory) choose(list []*payload.Extent, there map[extent.Name]bool) (kept []*payload.Extent) {
	inside := images(list)
	slices.SortFunc(list, func(a, b *payload.Extent) int { return cmp.Compare(b.Generation, a.Generation) })
	byName := map[extent.Name]*payload.Extent{}
	for _, f := range list {
		switch {
		case inside[f]:
			o.report.bad(f.Name, f.Runs, errors.New("begins inside another extent"))
		case byName[f.Name] != nil:
			// An older extent of the same name.
		case o.Space.Take(f.Runs) != nil:
			o.report.bad(f.Name, f.Runs, errors.New("shares space with a younger extent"))
		default:
			byName[f.Name] = f
		}
	}
	for _, f := range list {
		if byName[f.Name] != f {
			continue
		}
		if !rooted(f, byName, there) {
			o.Space.Free(f.Runs)
			o.report.bad(f.Name, f.Runs, fmt.Errorf("it extends %v, which is not here", f.Manifest.Parent))
			continue
		}
		o.report.count(f.Name, f.Runs)
		kept = append(kept, f)
	}
	return kept
}

// images tells for each extent whether it begins inside the space of another one.
func images(list []*payload.Extent) map[*payload.Extent]bool {
	type place struct {
		slab.Run
		of *payload.Extent
	}
	var runs []place
	for _, f := range list {
		for i, r := range f.Runs {
			if i == 0 { // an extent does not begin inside itself
				r.Off, r.Len = r.Off+1, r.Len-1
			}
			runs = append(runs, place{r, f})
		}
	}
	slices.SortFunc(runs, func(a, b place) int { return cmp.Or(cmp.Compare(a.Slab, b.Slab), cmp.Compare(a.Off, b.Off)) })
	starts := slices.Clone(list)
	slices.SortFunc(starts, func(a, b *payload.Extent) int {
		return cmp.Or(cmp.Compare(a.Runs[0].Slab, b.Runs[0].Slab), cmp.Compare(a.Runs[0].Off, b.Runs[0].Off))
	})
	inside := map[*payload.Extent]bool{}
	next, end := 0, slab.Run{}
	for _, f := range starts {
		at := f.Runs[0]
		for next < len(runs) && cmp.Or(cmp.Compare(runs[next].Slab, at.Slab), cmp.Compare(runs[next].Off, at.Off)) <= 0 {
			if r := runs[next]; r.of != f && (r.Slab != end.Slab || r.Off+r.Len > end.Off+end.Len) {
				end = r.Run
			}
			next++
		}
		inside[f] = end.Slab == at.Slab && at.Off < end.Off+end.Len
	}
	return inside
}

// rooted reports whether the chain of parents of an extent ends in a root or in an entry
// with a row, and not in a missing parent or a cycle.
func rooted(f *payload.Extent, byName map[extent.Name]*payload.Extent, there map[extent.Name]bool) bool {
	for steps := 0; f.Manifest.Parent != (extent.Name{}) && !there[f.Manifest.Parent]; steps++ {
		if f = byName[f.Manifest.Parent]; f == nil || steps > len(byName) {
			return false
		}
	}
	return true
}

// rowsAtOnce is the most rows in one batch.
const rowsAtOnce = 1000

// fill writes rows for the kept extents and syncs them. New generations will begin above
// highest, which is the highest generation of all extents and rows that were found, kept or
// not.
func (o *directory) fill(ctx context.Context, highest uint64, kept []*payload.Extent) error {
	for last := highest; last > 0; {
		n := min(last, 1<<40)
		if _, err := o.Catalog.NextGenerations(int(n)); err != nil {
			return err
		}
		last -= n
	}
	for part := range slices.Chunk(kept, rowsAtOnce) {
		changes := make([]catalog.Change, 0, len(part))
		for _, f := range part {
			row, err := o.rowOf(f)
			if err != nil {
				return err
			}
			changes = append(changes, catalog.Change{Row: row, Manifest: f.Stored})
		}
		if err := errors.Join(ctx.Err(), o.Catalog.Commit(changes, false)); err != nil {
			return err
		}
	}
	_, err := o.Sync(nil, highest)
	return err
}

func (o *directory) rowOf(f *payload.Extent) (*catalog.Row, error) {
	m := f.Manifest
	tenant, err := o.Catalog.TenantNumber(m.Tenant)
	if err != nil {
		return nil, err
	}
	return &catalog.Row{
		Name: f.Name, Generation: f.Generation, Runs: f.Runs, HeaderBytes: f.HeaderBytes, PayloadBytes: f.PayloadBytes, Coded: f.Coded,
		Level: uint8(tier.LevelLogged), Tenant: tenant, Fingerprint: m.Fingerprint, Spec: m.Spec, Packed: m.Packed, Begin: m.Begin, End: m.End,
		Parent: m.Parent, Ranks: len(m.Digests), RankBytes: m.RankBytes, Created: m.Created, ManifestSum: f.ManifestSum,
	}, nil
}
