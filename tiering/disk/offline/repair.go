package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Repair changes a directory so that Check finds no problems, and forgets as few entries as
// possible. It rewrites a damaged FORMAT and damaged headers of slabs, since their contents
// are known, and removes slab files that were never finished. It deletes rows that a deep
// check finds wrong. If the catalogue itself is damaged, it creates a new one from the
// contents of the slabs, and keeps the old one in a folder next to it. Removed entries
// whose space was not reused then reappear, since nothing on the disk distinguishes them.
// With CheckOptions.All such entries are also added to an intact catalogue.
//
// Entries that the disk cannot read are reported and kept: a daemon forgets such an entry
// when it needs it and still cannot read it. Rows whose profile is damaged or missing are
// also reported and kept, but a new catalogue does not include extents of such a profile.
// An error means that the state of the catalogue or of a slab could not be determined, and
// that it is unchanged. Like Check, Repair locks the directory. The report lists the
// problems found before the repair.
func Repair(ctx context.Context, dir string, opts CheckOptions) (*Report, error) {
	return RepairPlace(ctx, Place{Dir: dir}, opts)
}

// RepairPlace is Repair for any Place.
func RepairPlace(ctx context.Context, p Place, opts CheckOptions) (_ *Report, err error) {
	damage, err := volume.MendFormat(volume.Options{Dir: p.Dir, Slabs: p.Slabs, Index: p.Index, Log: zerolog.Nop()})
	var o *directory
	if err == nil {
		o, err = open(p)
	}
	if errors.Is(err, tier.ErrCorrupt) || errors.Is(err, slab.ErrHeader) {
		lost := &Report{}
		lost.problem(Problem{What: cmp.Or(damage, err).Error()})
		if damage != nil {
			lost.problem(Problem{What: err.Error()})
		}
		return lost, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if damage != nil {
		o.report.problem(Problem{What: damage.Error()})
		o.report.Format = true
	}
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
	err = errors.Join(o.removeUnfinished(), o.RemoveCorruptProfiles())
	return o.done(), err
}

func (o *directory) repair(ctx context.Context, opts CheckOptions) error {
	rows, err := o.rows()
	if err == nil {
		rows, err = o.dropBad(ctx, rows, opts)
	}
	if err == nil && opts.All {
		return o.takeUp(ctx, rows, opts)
	}
	if !errors.Is(err, errBroken) {
		return err
	}
	o.report.problem(Problem{What: err.Error()})
	o.uncount()
	_ = o.CloseCatalog() // its errors are the reason for the repair
	return o.rebuild(ctx, opts)
}

// uncount resets the space and the counts of the entries found so far.
func (o *directory) uncount() {
	o.ForgetSpace()
	r := o.report
	r.UsedBytes, r.PayloadBytes, r.Unread = 0, 0, 0
	r.Segments, r.SegmentBytes, r.Checkpoints, r.CheckpointBytes = 0, 0, 0, 0
}

// mend rewrites damaged headers of slabs, so that their contents can be examined. This
// includes headers of zeros: the slab may never have been finished, but the zeros may
// also be damage. It removes files that are too short to hold an entry.
func (o *directory) mend() error {
	for _, r := range o.Refused() {
		if !damagedSlab(r.Err) {
			continue
		}
		zeros := errors.Is(r.Err, slab.ErrUnfinished)
		if !zeros {
			o.report.problem(Problem{Slab: r.Number, What: r.Err.Error()})
		}
		_, err := o.RestoreSlab(r.Number)
		switch {
		case err == nil && zeros:
			o.unfinished = append(o.unfinished, r.Number)
		case err == nil:
			o.report.Restored++
		case errors.Is(err, slab.ErrSize):
			o.report.Removed++
			err = o.RemoveSlab(r.Number)
		}
		if err != nil {
			return fmt.Errorf("slabs: %w", err)
		}
	}
	return nil
}

// removeUnfinished removes the slabs with a header of zeros in which no extent was found.
func (o *directory) removeUnfinished() error {
	for _, n := range o.unfinished {
		if !o.Space.RemoveSlab(n) {
			o.report.problem(Problem{Slab: n, What: "its header was zeros"})
			o.report.Restored++
			continue
		}
		slabs := o.Slabs()
		i := slices.IndexFunc(slabs, func(s slab.SlabInfo) bool { return s.Number == n })
		if err := o.RemoveSlab(n); err != nil {
			return fmt.Errorf("slabs: %w", err)
		}
		o.report.Slabs--
		o.report.SlabBytes -= slabs[i].Bytes
		o.report.Removed++
	}
	return nil
}

// dropBad deletes the wrong rows and their descendants. It returns the remaining rows.
func (o *directory) dropBad(ctx context.Context, rows []catalog.Row, opts CheckOptions) (left []catalog.Row, err error) {
	names, err := o.checkRows(ctx, rows, opts)
	if err != nil {
		return nil, err
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
	left = slices.DeleteFunc(rows, func(r catalog.Row) bool { return bad[r.Name] })
	return left, o.Catalog.Commit(changes, true)
}
