package disk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Repair makes a directory one that Check finds clean, and forgets as little as
// that takes. Headers of slabs that are damaged are written anew, since all that
// they say is known; slab files that were never finished are removed. Rows that a
// deep check finds wrong are deleted. Where the catalogue itself is damaged, a new
// one is made from what slabs hold, and the old one is kept in a folder beside it;
// then entries that were forgotten, but whose space was not used again, are back,
// since nothing on the disk tells them apart.
//
// What the disk does not read is reported and left as it is: a daemon forgets such
// an entry when it needs it and still cannot read it. An error means that nothing
// was found out about the catalogue or about a slab, and that it is as it was.
// Repair needs the lock, as Check does. Problems in the report are those found before.
func Repair(ctx context.Context, dir string, opts CheckOptions) (*Report, error) {
	return RepairPlace(ctx, Place{Dir: dir}, opts)
}

// RepairPlace is Repair of any Place.
func RepairPlace(ctx context.Context, p Place, opts CheckOptions) (_ *Report, err error) {
	o, err := openOffline(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	opts.Deep = true
	if err := o.mend(); err != nil {
		return nil, err
	}
	if err := o.take(); err != nil {
		return nil, err
	}
	if err := o.repair(ctx, opts); err != nil {
		return o.done(), err
	}
	err = errors.Join(o.removeUnfinished(), o.removeProfiles())
	return o.done(), err
}

func (o *offline) repair(ctx context.Context, opts CheckOptions) error {
	rows, err := o.rows()
	if err == nil {
		err = o.dropBad(ctx, rows, opts)
	}
	if !errors.Is(err, errBroken) {
		return err
	}
	o.report.problem(Problem{What: err.Error()})
	o.uncount()
	if o.catalog != nil {
		// Its errors are the reason why we are here.
		_ = o.catalog.Close()
		o.catalog = nil
	}
	return o.rebuild(ctx, opts)
}

// uncount forgets what rows were found to own.
func (o *offline) uncount() {
	o.space = slab.NewSpace(o.format.granule)
	for _, s := range o.set.Slabs() {
		o.space.AddSlab(s.Number, s.Bytes)
	}
	r := o.report
	r.UsedBytes, r.PayloadBytes, r.Unread = 0, 0, 0
	r.Segments, r.SegmentBytes, r.Checkpoints, r.CheckpointBytes = 0, 0, 0, 0
}

// mend gives slabs their headers back, so that what lies in them can be looked at;
// also those that may never have been finished, since nothing else tells whether
// damage made the zeros. A file too short to hold anything is removed.
func (o *offline) mend() error {
	for _, r := range o.set.Refused() {
		if !damagedSlab(r.Err) {
			continue
		}
		zeros := errors.Is(r.Err, slab.ErrUnfinished)
		if !zeros {
			o.report.problem(Problem{Slab: r.Number, What: r.Err.Error()})
		}
		_, err := o.set.Restore(r.Number)
		switch {
		case err == nil && zeros:
			o.unfinished = append(o.unfinished, r.Number)
		case err == nil:
			o.report.Restored++
		case errors.Is(err, slab.ErrSize):
			o.report.Removed++
			err = o.set.Remove(r.Number)
		}
		if err != nil {
			return fmt.Errorf("disk: slabs: %w", err)
		}
	}
	return nil
}

// removeUnfinished removes the slabs that were never finished: those in which
// nothing was found.
func (o *offline) removeUnfinished() error {
	for _, n := range o.unfinished {
		if !o.space.RemoveSlab(n) {
			o.report.problem(Problem{Slab: n, What: "its header was zeros"})
			o.report.Restored++
			continue
		}
		slabs := o.set.Slabs()
		i := slices.IndexFunc(slabs, func(s slab.SlabInfo) bool { return s.Number == n })
		if err := o.set.Remove(n); err != nil {
			return fmt.Errorf("disk: slabs: %w", err)
		}
		o.report.Slabs--
		o.report.SlabBytes -= slabs[i].Bytes
		o.report.Removed++
	}
	return nil
}

// removeProfiles removes the files of profiles that are damaged; no row needs them
// any more.
func (o *offline) removeProfiles() error {
	dir := o.path(profileDir)
	names, err := o.index.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("disk: profiles: %w", err)
	}
	for _, name := range names {
		if len(name) != hex.EncodedLen(sha256.Size) {
			continue
		}
		path := o.index.PathJoin(dir, name)
		if _, err := readProfile(o.index, path, name); !errors.Is(err, tier.ErrCorrupt) {
			continue
		}
		if err := o.index.Remove(path); err != nil {
			return fmt.Errorf("disk: profiles: %w", err)
		}
	}
	return syncDir(o.index, dir)
}

// dropBad deletes the rows that are wrong, and then those that extend them.
func (o *offline) dropBad(ctx context.Context, rows []catalog.Row, opts CheckOptions) error {
	names, err := o.checkRows(ctx, rows, opts)
	if err != nil {
		return err
	}
	bad := make(map[extent.Name]bool, len(names))
	for _, n := range names {
		bad[n] = true
	}
	for grew := true; grew; {
		grew = false
		for i := range rows {
			if r := &rows[i]; r.Parent != (extent.Name{}) && bad[r.Parent] && !bad[r.Name] {
				bad[r.Name], grew = true, true
				o.report.bad(r.Name, r.Runs, fmt.Errorf("it extends %v, which is wrong", r.Parent))
			}
		}
	}
	changes := make([]catalog.Change, 0, len(bad))
	for n := range bad {
		changes = append(changes, catalog.Change{Delete: &n})
	}
	o.report.Forgotten = len(changes)
	return o.catalog.Commit(changes, true)
}

// rebuild makes a new catalogue of the extents in the slabs.
func (o *offline) rebuild(ctx context.Context, opts CheckOptions) error {
	list, err := o.scan(ctx, opts)
	if err != nil {
		return err
	}
	kept := o.choose(list)
	o.report.Rebuilt = true
	o.report.Forgotten = len(list) - len(kept)
	const fresh = indexDir + ".new"
	if err := o.index.RemoveAll(o.path(fresh)); err != nil {
		return err
	}
	if err := o.openCatalog(fresh, zerolog.Nop()); err != nil {
		return err
	}
	if err := o.fill(ctx, list, kept); err != nil {
		return err
	}
	err = o.catalog.Close()
	o.catalog = nil
	if err != nil {
		return err
	}
	return o.exchange(fresh)
}

// scan reads every granule's first block and all of what begins there. A header
// proves nothing yet, since it may be that of an extent that was forgotten and
// partly written over: only payloads that verify count.
func (o *offline) scan(ctx context.Context, opts CheckOptions) (list []*found, err error) {
	var done int64
	for _, s := range o.set.Slabs() {
		for at := o.format.granule; at < s.Bytes; at += window {
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
func (o *offline) starts(s slab.SlabInfo, at, n int64) (offs []int64) {
	buf := slab.AlignedBuffer(int(n &^ (slab.BlockBytes - 1)))
	whole := o.set.Read([]slab.Run{{Slab: s.Number, Off: at, Len: int64(len(buf))}}, 0, [][]byte{buf}) == nil
	for i := int64(0); i+slab.BlockBytes <= int64(len(buf)); i += o.format.granule {
		block := buf[i : i+slab.BlockBytes]
		if !whole {
			if err := o.readBlocks([]slab.Run{{Slab: s.Number, Off: at + i, Len: slab.BlockBytes}}, 0, block); err != nil {
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
func (o *offline) candidate(ctx context.Context, at slab.Run) (*found, error) {
	f, err := o.readHeader([]slab.Run{at})
	if err != nil {
		return nil, err
	}
	p := o.profiles[f.manifest.Fingerprint]
	if p == nil {
		return nil, fmt.Errorf("extent %v of profile %x, which is not here", f.Name, f.manifest.Fingerprint[:8])
	}
	if f.Kind > uint8(tier.Spliced) {
		return nil, fmt.Errorf("extent %v of an unknown kind", f.Name)
	}
	if err := o.verify(ctx, f, p, runtime.GOMAXPROCS(0)); err != nil {
		return nil, fmt.Errorf("extent %v: %w", f.Name, err)
	}
	return f, nil
}

// choose decides which extents become entries. Of one name the youngest does. Two
// that verify cannot share space, unless somebody has put the image of an extent
// into the payload of another: what begins inside another is such an image.
func (o *offline) choose(list []*found) (kept []*found) {
	inside := images(list)
	slices.SortFunc(list, func(a, b *found) int { return cmp.Compare(b.Generation, a.Generation) })
	byName := map[extent.Name]*found{}
	for _, f := range list {
		switch {
		case inside[f]:
			o.report.bad(f.Name, f.Runs, errors.New("begins inside another extent"))
		case byName[f.Name] != nil:
			// An older one of the same name.
		case o.space.Take(f.Runs) != nil:
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
			o.space.Free(f.Runs)
			o.report.bad(f.Name, f.Runs, fmt.Errorf("it extends %v, which is not here", f.manifest.Parent))
			continue
		}
		o.report.count(f.Name, f.Runs)
		kept = append(kept, f)
	}
	return kept
}

// images are the extents that begin inside the space of another.
func images(list []*found) map[*found]bool {
	type place struct {
		slab.Run
		of *found
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
	slices.SortFunc(starts, func(a, b *found) int {
		return cmp.Or(cmp.Compare(a.Runs[0].Slab, b.Runs[0].Slab), cmp.Compare(a.Runs[0].Off, b.Runs[0].Off))
	})
	inside := map[*found]bool{}
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
func rooted(f *found, byName map[extent.Name]*found) bool {
	for steps := 0; f.manifest.Parent != (extent.Name{}); steps++ {
		if f = byName[f.manifest.Parent]; f == nil || steps > len(byName) {
			return false
		}
	}
	return true
}

// rowsAtOnce bounds a batch of a new catalogue.
const rowsAtOnce = 1000

// fill writes the rows of a new catalogue. Generations go on behind the highest
// that was seen, also in what is not kept.
func (o *offline) fill(ctx context.Context, all, kept []*found) error {
	var last uint64
	for _, f := range all {
		last = max(last, f.Generation)
	}
	highest := last
	for last > 0 {
		n := min(last, 1<<40)
		if _, err := o.catalog.NextGenerations(int(n)); err != nil {
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
			changes = append(changes, catalog.Change{Row: row, Manifest: f.stored})
		}
		if err := errors.Join(ctx.Err(), o.catalog.Commit(changes, false)); err != nil {
			return err
		}
	}
	if err := o.catalog.SaveCounters(map[string]uint64{markName: highest}); err != nil {
		return err
	}
	return o.catalog.SyncNow()
}

func (o *offline) rowOf(f *found) (*catalog.Row, error) {
	m := f.manifest
	tenant, err := o.catalog.TenantNumber(m.Tenant)
	if err != nil {
		return nil, err
	}
	return &catalog.Row{
		Name: f.Name, Generation: f.Generation, Runs: f.Runs, HeaderBytes: f.HeaderBytes, PayloadBytes: f.PayloadBytes, Coded: f.Coded,
		Level: uint8(tier.LevelLogged), Tenant: tenant, Fingerprint: m.Fingerprint, Spec: m.Spec, Begin: m.Begin, End: m.End,
		Parent: m.Parent, Ranks: len(m.Digests), RankBytes: m.RankBytes, Created: m.Created, ManifestSum: f.ManifestSum,
	}, nil
}

// exchange puts a new catalogue in the place of the old one, which is kept. A
// crash in between leaves no catalogue, and Repair begins anew.
func (o *offline) exchange(fresh string) error {
	old := ""
	for i := 1; ; i++ {
		old = fmt.Sprintf("%s.old-%d", indexDir, i)
		if _, err := o.index.Stat(o.path(old)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
	}
	err := o.index.Rename(o.path(indexDir), o.path(old))
	switch {
	case err == nil:
		o.report.KeptIndex = old
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := o.index.Rename(o.path(fresh), o.path(indexDir)); err != nil {
		return err
	}
	return syncDir(o.index, o.dir)
}
