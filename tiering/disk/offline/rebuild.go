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
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rebuild makes a new catalogue of the extents in the slabs.
func (o *directory) rebuild(ctx context.Context, opts CheckOptions) error {
	list, err := o.scan(ctx, opts)
	if err != nil {
		return err
	}
	kept := o.choose(list)
	o.report.Rebuilt = true
	o.report.Forgotten = len(list) - len(kept)
	if err := o.BeginCatalog(); err != nil {
		return err
	}
	if err := o.fill(ctx, list, kept); err != nil {
		return err
	}
	o.report.KeptIndex, err = o.ExchangeCatalog()
	return err
}

// scan reads every granule's first block and all of what begins there. A header
// proves nothing yet, since it may be that of an extent that was forgotten and
// partly written over: only payloads that verify count.
func (o *directory) scan(ctx context.Context, opts CheckOptions) (list []*payload.Extent, err error) {
	var done int64
	for _, s := range o.Slabs() {
		for at := o.Format.Granule; at < s.Bytes; at += window {
			n := min(window, s.Bytes-at)
			for _, off := range o.starts(s, at, n) {
				f, err := o.candidate(ctx, slab.Run{Slab: s.Number, Off: off, Len: s.Bytes - off})
				switch {
				case ctx.Err() != nil:
					return nil, ctx.Err()
				case err != nil:
					o.report.problem(Problem{Slab: s.Number, Off: off, What: err.Error()})
				default:
					list = append(list, f)
					o.report.PayloadBytes += f.PayloadBytes
				}
			}
			opts.progress(done+at+n, o.report.SlabBytes)
		}
		done += s.Bytes
	}
	return list, nil
}

// window is how much of a slab is read at once in search of headers.
const window = 8 << 20

// starts finds the granules of a window that begin with a header. Where the window
// does not read as a whole, each of its granules is tried alone.
func (o *directory) starts(s slab.SlabInfo, at, n int64) (offs []int64) {
	buf := slab.AlignedBuffer(int(n &^ (slab.BlockBytes - 1)))
	whole := o.Read([]slab.Run{{Slab: s.Number, Off: at, Len: int64(len(buf))}}, 0, [][]byte{buf}) == nil
	for i := int64(0); i+slab.BlockBytes <= int64(len(buf)); i += o.Format.Granule {
		block := buf[i : i+slab.BlockBytes]
		if !whole {
			if err := o.Read([]slab.Run{{Slab: s.Number, Off: at + i, Len: slab.BlockBytes}}, 0, [][]byte{block}); err != nil {
				o.report.problem(Problem{Slab: s.Number, Off: at + i, What: err.Error()})
				continue
			}
		}
		if _, err := extent.Parse(block); err == nil {
			offs = append(offs, at+i)
		}
	}
	return offs
}

// candidate reads what begins at a run and verifies it.
func (o *directory) candidate(ctx context.Context, at slab.Run) (*payload.Extent, error) {
	f, err := payload.ReadExtent(o, []slab.Run{at})
	if err != nil {
		return nil, err
	}
	p := o.profiles[f.Manifest.Fingerprint]
	if p == nil {
		return nil, fmt.Errorf("extent %v of profile %x, which is not here", f.Name, f.Manifest.Fingerprint[:8])
	}
	if f.Kind > uint8(tier.Spliced) {
		return nil, fmt.Errorf("extent %v of an unknown kind", f.Name)
	}
	if err := f.Verify(ctx, o, p, runtime.GOMAXPROCS(0)); err != nil {
		return nil, fmt.Errorf("extent %v: %w", f.Name, err)
	}
	return f, nil
}

// choose decides which extents become entries. Of one name the youngest does. Two
// that verify cannot share space, unless somebody has put the image of an extent
// into the payload of another: what begins inside another is such an image.
func (o *directory) choose(list []*payload.Extent) (kept []*payload.Extent) {
	inside := images(list)
	slices.SortFunc(list, func(a, b *payload.Extent) int { return cmp.Compare(b.Generation, a.Generation) })
	byName := map[extent.Name]*payload.Extent{}
	for _, f := range list {
		switch {
		case inside[f]:
			o.report.bad(f.Name, f.Runs, errors.New("begins inside another extent"))
		case byName[f.Name] != nil:
			// An older one of the same name.
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
		if !rooted(f, byName) {
			o.Space.Free(f.Runs)
			o.report.bad(f.Name, f.Runs, fmt.Errorf("it extends %v, which is not here", f.Manifest.Parent))
			continue
		}
		o.report.count(f.Name, f.Runs)
		kept = append(kept, f)
	}
	return kept
}

// images are the extents that begin inside the space of another.
func images(list []*payload.Extent) map[*payload.Extent]bool {
	type place struct {
		slab.Run
		of *payload.Extent
	}
	var runs []place
	for _, f := range list {
		for i, r := range f.Runs {
			if i == 0 { // its own beginning is not inside
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

// rooted follows a chain to its root, which no ring has.
func rooted(f *payload.Extent, byName map[extent.Name]*payload.Extent) bool {
	for steps := 0; f.Manifest.Parent != (extent.Name{}); steps++ {
		if f = byName[f.Manifest.Parent]; f == nil || steps > len(byName) {
			return false
		}
	}
	return true
}

// rowsAtOnce bounds a batch of a new catalogue.
const rowsAtOnce = 1000

// fill writes the rows of a new catalogue. Generations go on behind the highest
// that was seen, also in what is not kept.
func (o *directory) fill(ctx context.Context, all, kept []*payload.Extent) error {
	var last uint64
	for _, f := range all {
		last = max(last, f.Generation)
	}
	highest := last
	for last > 0 {
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
		Level: uint8(tier.LevelLogged), Tenant: tenant, Fingerprint: m.Fingerprint, Spec: m.Spec, Begin: m.Begin, End: m.End,
		Parent: m.Parent, Ranks: len(m.Digests), RankBytes: m.RankBytes, Created: m.Created, ManifestSum: f.ManifestSum,
	}, nil
}
