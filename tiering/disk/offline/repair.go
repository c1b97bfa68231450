package offline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
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
// problems found before the repair. If KEY is that of another store, nothing is changed, and
// the error is volume.ErrKey.
func Repair(ctx context.Context, dir string, opts CheckOptions) (*Report, error) {
	return RepairPlace(ctx, Place{Dir: dir}, opts)
}

// RepairPlace is Repair for any Place.
func RepairPlace(ctx context.Context, p Place, opts CheckOptions) (_ *Report, err error) {
	o, err := open(p, true)
	if errors.Is(err, tier.ErrCorrupt) || errors.Is(err, slab.ErrHeader) {
		lost := &Report{}
		lost.problem(Problem{What: text(err)})
		return lost, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if o.Damage != nil {
		o.report.problem(Problem{What: text(o.Damage)})
	}
	opts.Deep = true
	if err := o.adopt(); err != nil {
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
		err = o.judgeKey(ctx, rows, len(rows))
	}
	if err == nil {
		rows, err = o.dropBad(ctx, rows, opts)
	}
	if err == nil && opts.All {
		return o.takeUp(ctx, rows, opts)
	}
	if !errors.Is(err, errBroken) {
		return err
	}
	o.report.problem(Problem{What: text(err)})
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

// adopt takes slabs with damaged headers into use, so that their contents can be examined.
// This includes headers of zeros: the slab may never have been finished, but the zeros may
// also be damage. It changes no file.
func (o *directory) adopt() error {
	for _, r := range o.Refused() {
		if !damagedSlab(r.Err) {
			continue
		}
		damaged, err := o.AdoptSlab(r.Number)
		switch {
		case errors.Is(err, slab.ErrSize):
			o.short = append(o.short, r.Number)
			continue // take reports it
		case err != nil:
			return fmt.Errorf("slabs: %w", err)
		case damaged:
			o.headless = append(o.headless, r.Number)
		}
		if errors.Is(r.Err, slab.ErrUnfinished) {
			o.unfinished = append(o.unfinished, r.Number)
			continue
		}
		o.report.problem(Problem{Slab: r.Number, What: text(r.Err)})
		o.report.Restored++
	}
	return nil
}

// mend writes a damaged FORMAT and the headers of adopted slabs, and removes files that are
// too short to hold an entry. Nothing is changed before it is known that KEY is not another
// store's.
func (o *directory) mend() error {
	if o.Damage != nil {
		if err := o.WriteFormat(o.own); err != nil {
			return err
		}
		o.report.Format = true
	}
	for _, n := range o.headless {
		if err := o.WriteHeader(n); err != nil {
			return fmt.Errorf("slabs: %w", err)
		}
	}
	for _, n := range o.short {
		if err := o.RemoveSlab(n); err != nil {
			return fmt.Errorf("slabs: %w", err)
		}
		o.report.Removed++
	}
	o.Damage, o.headless, o.short = nil, nil, nil
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
	if err == nil {
		err = o.mend()
	}
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
