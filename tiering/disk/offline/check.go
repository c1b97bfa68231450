package offline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Place is a directory that no tier has open. Only Dir is required; Slabs and Index are
// the file systems of tests.
type Place struct {
	Dir   string
	Slabs slab.FS
	Index vfs.FS
}

// CheckOptions sets how thorough a check is.
type CheckOptions struct {
	Deep bool // reads all payloads, compares every digest, and looks for extents without a row
	All  bool // only for Repair: also adopts extents that verify and have no row
	// Progress is called from time to time. The parameters done and total are numbers of
	// entries, or of bytes while slabs are searched for extents. If Progress is nil, it is
	// not called.
	Progress func(done, total int64)
}

func (o *CheckOptions) progress(done, total int64) {
	if o.Progress != nil {
		o.Progress(done, total)
	}
}

// directory is an open directory with the findings about it.
type directory struct {
	*volume.Volume
	profiles map[profile.Fingerprint]*profile.Profile
	report   *Report
	slabs    map[uint32]bool // numbers of the slabs in use
	// own reports that KEY belongs to the store: FORMAT or an extent says so. strange reports
	// that an intact extent has the seal of another key.
	own, strange bool
	// Numbers of slabs whose headers have to be written, and of those too short to hold
	// anything.
	headless, short []uint32
	// Numbers of slabs with a header of zeros, which an interrupted creation leaves.
	unfinished []uint32
}

// The function open locks a directory and opens everything that does not depend on the
// catalogue. The errors volume.ErrNotTier, ErrForeign, ErrLocked, ErrVersion and ErrKey mean
// that the directory was not opened. With mend, a damaged FORMAT is no error if its content is known.
func open(p Place, mend bool) (*directory, error) {
	v, err := volume.OpenExisting(volume.Options{
		Dir: p.Dir, Slabs: p.Slabs, Index: p.Index, Mend: mend, Width: runtime.GOMAXPROCS(0), Log: zerolog.Nop(),
	})
	if err != nil {
		return nil, err
	}
	d := &directory{Volume: v, profiles: map[profile.Fingerprint]*profile.Profile{}, slabs: map[uint32]bool{}, own: v.Bound()}
	d.report = &Report{Version: v.Format.Version, Store: v.Format.ID.String(), GranuleBytes: v.Format.Granule}
	return d, nil
}

// take adds slabs and profiles to the report. A slab of another version, or one that cannot
// be opened now, is not damage. Such a slab ends the check with an error: otherwise all
// entries in it would seem lost.
func (o *directory) take() error {
	for _, s := range o.Slabs() {
		o.AddSlab(s)
		o.slabs[s.Number] = true
		o.report.Slabs++
	}
	for _, r := range o.Refused() {
		switch {
		case errors.Is(r.Err, slab.ErrUnfinished): // if it holds entries, checkRows reports them as lost
		case damagedSlab(r.Err), errors.Is(r.Err, slab.ErrStore):
			o.report.problem(Problem{Slab: r.Number, What: text(r.Err)})
		case errors.Is(r.Err, slab.ErrVersion), errors.Is(r.Err, slab.ErrGranule):
			return fmt.Errorf("slabs: %w: %w", r.Err, volume.ErrVersion)
		default:
			return fmt.Errorf("slabs: %w", r.Err)
		}
	}
	o.report.SlabBytes = o.SlabBytes()
	profiles, unread, err := o.Profiles()
	if err != nil {
		return err
	}
	for _, u := range unread {
		var errno unix.Errno
		switch {
		case errors.Is(u.Err, tier.ErrCorrupt):
			o.report.problem(Problem{What: text(u.Err)})
		case errors.As(u.Err, &errno):
			return u.Err
		default: // the file is intact, but this version cannot parse it
			return fmt.Errorf("%w: %w", u.Err, volume.ErrVersion)
		}
	}
	for _, p := range profiles {
		o.profiles[p.Fingerprint()] = p
	}
	o.report.Profiles = len(profiles)
	return nil
}

// damagedSlab reports whether a slab is refused because of damage that Repair fixes.
func damagedSlab(err error) bool {
	for _, damage := range [...]error{slab.ErrUnfinished, slab.ErrHeader, slab.ErrSize, unix.EIO} {
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

// done completes the report with the free bytes and returns it.
func (o *directory) done() *Report {
	o.report.FreeBytes = o.Space.FreeBytes()
	return o.report
}

// Check checks that slabs, rows, headers and manifests in a directory agree. With
// CheckOptions.Deep it also checks the payloads. It locks the directory, so it returns
// volume.ErrLocked while a daemon runs. Opening the catalogue replays its log; Check
// changes nothing else. Problems of the directory are in the report. An error means that it
// was not, or not completely, examined.
func Check(ctx context.Context, dir string, opts CheckOptions) (*Report, error) {
	return CheckPlace(ctx, Place{Dir: dir}, opts)
}

// CheckPlace is Check for any Place.
func CheckPlace(ctx context.Context, p Place, opts CheckOptions) (_ *Report, err error) {
	o, err := open(p, false)
	if errors.Is(err, tier.ErrCorrupt) || errors.Is(err, volume.ErrKey) || errors.Is(err, volume.ErrForeign) {
		r := &Report{} // nothing else can be examined
		r.problem(Problem{What: text(err)})
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.take(); err != nil {
		return nil, err
	}
	rows, err := o.rows()
	if errors.Is(err, errBroken) {
		o.report.problem(Problem{What: text(err)})
		return o.done(), nil
	}
	if err != nil {
		return nil, err
	}
	if err = o.judgeKey(ctx, rows, payload.JudgeMost); errors.Is(err, volume.ErrKey) {
		o.report.problem(Problem{What: text(err)})
		return o.done(), nil
	}
	if err == nil {
		_, err = o.checkRows(ctx, rows, opts)
	}
	if err == nil && opts.Deep {
		err = o.countRowless(ctx, rows, opts)
	}
	if errors.Is(err, errBroken) {
		o.report.problem(Problem{What: text(err)})
		err = nil
	}
	return o.done(), err
}

func (o *directory) countRowless(ctx context.Context, rows []catalog.Row, opts CheckOptions) error {
	list, err := o.rowless(ctx, rows, opts)
	for _, f := range list {
		o.report.Rowless++
		o.report.RowlessBytes += slab.RunBytes(f.Runs)
	}
	return err
}

// judgeKey finds out whether KEY belongs to the store, from at most the given number of
// extents with rows. The error is volume.ErrKey if it does not.
func (o *directory) judgeKey(ctx context.Context, rows []catalog.Row, most int) error {
	if o.own || o.Key == nil {
		return nil
	}
	verdict, err := payload.Judge(ctx, o, rows, o.Key, most, func(fp profile.Fingerprint) *profile.Profile { return o.profiles[fp] })
	if err == nil && verdict == payload.Strange {
		err = volume.ErrKey
	}
	o.own = verdict == payload.Own
	return err
}

// errBroken is wrapped with the reason why a catalogue is unusable.
var errBroken = errors.New("broken")

// The method rows opens the catalogue and reads all rows. The error errBroken means that
// the catalogue has to be rebuilt. After any other error the catalogue is not known to be
// damaged.
func (o *directory) rows() (rows []catalog.Row, err error) {
	if err = o.OpenCatalog(); err == nil {
		rows, err = o.ReadRows()
	}
	return rows, o.judge(err)
}

// judge wraps an error of the catalogue as errBroken if it means damage.
func (o *directory) judge(err error) error {
	var errno unix.Errno
	switch {
	case err == nil:
		return nil
	case errors.As(err, &errno) && errno != unix.ENOENT:
		return fmt.Errorf("%w (if it stays so, move %s away: repair makes a new one)", err, o.IndexPath())
	case errors.Is(err, catalog.ErrVersion):
		return fmt.Errorf("%w: %w", err, volume.ErrVersion)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

// checkRows checks every row. It reports the wrong rows and returns their names. Correct
// rows claim their space first, the highest generation before lower ones. Rows whose
// extents cannot be read, or whose profiles are missing, claim their space after that. They
// are reported, but are not known to be wrong.
func (o *directory) checkRows(ctx context.Context, rows []catalog.Row, opts CheckOptions) (bad []extent.Name, err error) {
	tenants := o.Catalog.Tenants()
	there := make(map[extent.Name]bool, len(rows))
	for i := range rows {
		there[rows[i].Name] = true
	}
	slices.SortFunc(rows, func(a, b catalog.Row) int { return cmp.Compare(b.Generation, a.Generation) })
	var unread []*catalog.Row
	lost := map[uint32]int{} // number of entries in slabs that cannot be used
	for i := range rows {
		r := &rows[i]
		err := o.checkRow(ctx, r, tenants, there, opts)
		if err == nil {
			err = o.Space.Take(r.Runs)
		}
		switch {
		case ctx.Err() != nil:
			return bad, ctx.Err()
		case errors.Is(err, errCatalog):
			return bad, o.judge(err)
		case err == nil:
			o.report.count(r.Name, r.Runs)
		case errors.Is(err, errNoSlab):
			lost[o.noSlab(r)]++
			bad = append(bad, r.Name)
		default:
			o.report.bad(r.Name, r.Runs, err)
			if errors.Is(err, payload.ErrUnread) || errors.Is(err, errDormant) {
				unread = append(unread, r)
			} else {
				bad = append(bad, r.Name)
			}
		}
		opts.progress(int64(i+1), int64(len(rows)))
	}
	for _, n := range slices.Sorted(maps.Keys(lost)) {
		o.report.problem(Problem{Slab: n, What: fmt.Sprintf("%s (objects in it: %d)", o.whyNoSlab(n), lost[n])})
	}
	for _, r := range unread {
		if err := o.Space.Take(r.Runs); err != nil {
			bad = append(bad, r.Name)
			continue
		}
		o.report.Unread++
		o.report.count(r.Name, r.Runs)
	}
	return bad, nil
}

// errDormant reports that a row cannot be checked because its profile is missing. The
// daemon keeps such a row until an engine registers the profile.
var errDormant = errors.New("it is kept until an engine registers that")

// errNoSlab reports a row with space in a slab that cannot be used.
var errNoSlab = errors.New("no slab")

// noSlab returns the number of the first slab of a row that cannot be used; 0 = none.
func (o *directory) noSlab(r *catalog.Row) uint32 {
	for _, run := range r.Runs {
		if !o.slabs[run.Slab] {
			return run.Slab
		}
	}
	return 0
}

// whyNoSlab returns why a slab cannot be used.
func (o *directory) whyNoSlab(n uint32) string {
	for _, r := range o.Refused() {
		if r.Number == n {
			return "the file cannot be used as it is"
		}
	}
	return "the file is missing: put it back, or repair drops what was in it"
}

// errCatalog marks errors of the catalogue, as opposed to problems of one row.
var errCatalog = errors.New("catalogue")

func (o *directory) checkRow(ctx context.Context, r *catalog.Row, tenants map[uint32]string, there map[extent.Name]bool, opts CheckOptions) error {
	p := o.profiles[r.Fingerprint]
	switch {
	case o.noSlab(r) != 0:
		return errNoSlab
	case tenants[r.Tenant] == "":
		return fmt.Errorf("its tenant %d has no name", r.Tenant)
	case r.Parent != (extent.Name{}) && !there[r.Parent]:
		return fmt.Errorf("it extends %v, which is not here", r.Parent)
	case p != nil && !tier.CheckpointKind(r.Kind).Known(p):
		return fmt.Errorf("kind %d", r.Kind)
	}
	x, err := payload.ReadExtent(o, r.Runs)
	if err != nil {
		return err
	}
	if err := x.Agrees(r, tenants[r.Tenant]); err != nil {
		return err
	}
	if p != nil {
		if err := x.Fits(p); err != nil {
			return err
		}
	}
	stored, ok, err := o.Catalog.Manifest(r.Name)
	switch {
	case err != nil:
		return fmt.Errorf("manifest of %v: %w: %w", r.Name, errCatalog, err)
	case !ok || !bytes.Equal(stored, x.Stored):
		return errors.New("the manifest in the catalogue is missing or another")
	case p == nil:
		return fmt.Errorf("its profile %x is damaged or missing: %w", r.Fingerprint[:8], errDormant)
	}
	if !opts.Deep {
		return nil
	}
	if err := x.Verify(ctx, o, p, o.Key, runtime.GOMAXPROCS(0)); err != nil {
		return err
	}
	o.report.PayloadBytes += x.PayloadBytes
	return nil
}
