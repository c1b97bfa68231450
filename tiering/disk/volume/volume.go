package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options configures a Volume. For an existing directory only Dir is required.
type Options struct {
	// Dir is the directory. Tests may replace the file systems with Slabs and Index; then
	// Dir is a name inside Index.
	Dir   string
	Slabs slab.FS
	Index vfs.FS

	// Existing makes Open refuse a directory that does not yet belong to a tier. Store is
	// the store id that the directory must have; zero = any.
	Existing bool
	Store    slab.StoreID
	// Mend makes OpenExisting open a directory whose FORMAT is damaged or lost, if KEY and the
	// slabs say what it had. It does not write FORMAT.
	Mend bool

	GranuleBytes int64 // granule of a new directory
	SlabBytes    int64 // size of new slabs
	Width        int   // transfers in flight per call
	Log          zerolog.Logger
	Now          func() time.Time // clock of Operations; default time.Now
}

// Volume is an open directory.
type Volume struct {
	// These fields are fixed once the directory is open. Only offline functions replace
	// Space and Catalog.
	Format  Format
	Damage  error       // what is wrong with FORMAT; only with Options.Mend
	Key     *extent.Key // nil only in offline functions, for a directory of version 1
	Space   *slab.Space
	Catalog *catalog.Catalog
	set     *slab.Set
	dir     string
	index   vfs.FS // file system of everything except slabs
	slabs   slab.FS
	lock    io.Closer
	anchors anchors
	log     zerolog.Logger

	Reads, Writes Operations
	slabBytes     atomic.Int64

	profiles struct {
		sync.Mutex // held while a profile is written
		stored     map[profile.Fingerprint]bool
	}
}

// Open opens a directory, or creates it if its parent exists. It locks the directory before
// it changes any file there. ErrForeign means that we must not use the directory, and that
// it was left unchanged. ErrAbsent means that it is not the expected directory.
func Open(o Options) (v *Volume, err error) {
	v = newVolume(&o)
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
			v = nil
		}
	}()
	if err := v.examine(); err != nil {
		return v, err
	}
	if err := v.makeDirs(&o); err != nil {
		return v, err
	}
	if v.lock, err = lockDir(v.index, v.dir); err != nil {
		return v, err
	}
	if err := v.openFormat(o.GranuleBytes); err != nil {
		return v, err
	}
	if err := v.closeToGroup(); err != nil {
		return v, err
	}
	if err := v.openSlabs(o.SlabBytes, o.Width); err != nil {
		return v, err
	}
	if len(v.set.Slabs()) > 0 {
		// If the catalogue is lost, opening must fail: a new, empty one would lose all
		// entries.
		if err := v.haveCatalog(); err != nil {
			return v, err
		}
	}
	if err := v.openCatalog(indexDir); err != nil {
		return v, err
	}
	if v.Format.Version != Version {
		if err := v.sealFromNow(); err != nil {
			return v, err
		}
	}
	return v, v.hold()
}

// OpenExisting locks the directory of a tier and opens all of it except the catalogue, for
// offline functions. It changes nothing. The errors ErrNotTier, ErrForeign, ErrLocked,
// ErrVersion and ErrKey mean that the directory was not opened.
func OpenExisting(o Options) (v *Volume, err error) {
	v = newVolume(&o)
	if err := v.examineExisting(); err != nil {
		return nil, err
	}
	if err := v.readExisting(&o); err != nil { // before there is a lock file
		return nil, err
	}
	if v.lock, err = lockDir(v.index, v.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
			v = nil
		}
	}()
	if err := v.readExisting(&o); err != nil {
		return v, err
	}
	switch {
	case v.Damage != nil:
		if err := v.knowFormat(); err != nil {
			return v, fmt.Errorf("%v; it cannot be written anew: %w", v.Damage, err)
		}
	case v.Format.Version == Version:
		if err := v.readKey(); err != nil {
			return v, err
		}
	}
	return v, v.openSlabs(0, o.Width)
}

// readExisting reads the format of a directory that must be that of a tier.
func (v *Volume) readExisting(o *Options) (err error) {
	v.Format, err = readFormat(v.index, v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = errkind.With(fmt.Errorf("%s has no file %s", o.Dir, formatName), ErrNotTier)
		if v.used() {
			err = errFormatLost
		}
	}
	if v.Damage = nil; o.Mend && errors.Is(err, errMend) {
		v.Damage = errors.New(strings.TrimSuffix(err.Error(), ": "+errMend.Error())) // the caller does that
		return nil
	}
	return err
}

func newVolume(o *Options) *Volume {
	v := &Volume{dir: o.Dir, index: o.Index, slabs: o.Slabs, log: o.Log}
	if v.index == nil {
		v.index = vfs.Default
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	v.Reads.now, v.Writes.now = now, now
	v.profiles.stored = map[profile.Fingerprint]bool{}
	return v
}

func (v *Volume) path(name string) string { return v.index.PathJoin(v.dir, name) }

// makeDirs creates the directory and its folders, but not its parent: a missing parent
// means that a disk is not mounted. In a directory that was used before, it creates only
// the folder of profiles, whose files can be rewritten. Any other missing folder was
// moved away or is on a disk that is not mounted.
func (v *Volume) makeDirs(o *Options) error {
	names := []string{"", indexDir, slabDir, profileDir}
	switch f, err := readFormat(v.index, v.dir); {
	case errors.Is(err, fs.ErrNotExist) && v.used(): // must not be initialized again
		return errFormatLost
	case errors.Is(err, fs.ErrNotExist) && o.Existing:
		return fmt.Errorf("%s holds no disk tier, and none is made there: %w", v.dir, ErrAbsent)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := v.index.Stat(v.index.PathDir(v.dir)); err != nil {
			return err
		}
	case err == nil && o.Store != (slab.StoreID{}) && f.ID != o.Store:
		// This is an error even if the other store is new and empty, in the mount point
		// of an absent disk: the daemon reads the notes in the directory, which say what
		// operators switched off, only once at its start.
		return fmt.Errorf("%s is that of store %v, not of %v: restart the daemon to use this one, or %w", v.dir, f.ID, o.Store, ErrAbsent)
	default:
		names = []string{profileDir}
	}
	for _, name := range names {
		if err := v.index.MkdirAll(v.path(name), 0o700); err != nil {
			return err
		}
	}
	if err := syncDir(v.index, v.index.PathDir(v.dir)); err != nil {
		return err
	}
	return syncDir(v.index, v.dir)
}

// used reports whether something was stored in the directory.
func (v *Volume) used() bool {
	for _, name := range [...]string{indexDir, slabDir} {
		if list, err := v.index.List(v.path(name)); err == nil && len(list) > 0 {
			return true
		}
	}
	return false
}

// openSlabs opens the slab files. The parameter bytes is the size of new slabs; existing
// ones keep their sizes. The parameter width is the number of transfers in flight per call.
func (v *Volume) openSlabs(bytes int64, width int) (err error) {
	if v.slabs == nil {
		if v.slabs, err = slab.OpenDir(filepath.Join(v.dir, slabDir)); err != nil {
			return err
		}
	}
	g := v.Format.Granule
	v.Space = slab.NewSpace(g)
	v.set, err = slab.OpenSet(v.slabs, slab.SetOptions{
		StoreID: v.Format.ID, SlabBytes: max(bytes&^(g-1), 2*g), Granule: g, Width: min(width, slab.MaxWidth),
	})
	if err != nil {
		return fmt.Errorf("slabs: %w", err)
	}
	return nil
}

// haveCatalog checks that there is a catalogue. It looks for the same file as Pebble, which
// creates a new catalogue if the file is missing. If it is missing, haveCatalog returns
// tier.ErrCorrupt.
func (v *Volume) haveCatalog() error {
	list, err := v.index.List(v.path(indexDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range list {
		if strings.HasPrefix(file, "marker.manifest") {
			return nil
		}
	}
	return fmt.Errorf("the catalogue in %s is lost: %w", v.path(indexDir), tier.ErrCorrupt)
}

func (v *Volume) openCatalog(name string) (err error) {
	v.Catalog, err = catalog.Open(v.index, v.path(name), catalog.Options{StoreID: v.Format.ID, Log: v.log})
	return err
}

// Close closes all open files, the lock last.
func (v *Volume) Close() error {
	var errs []error
	v.anchors.close()
	if v.Catalog != nil {
		errs = append(errs, v.Catalog.Close())
	}
	if v.set != nil {
		errs = append(errs, v.set.Close())
	}
	if v.lock != nil {
		errs = append(errs, v.lock.Close())
	}
	return errors.Join(errs...)
}

// ReadRows reads the whole catalogue.
func (v *Volume) ReadRows() (rows []catalog.Row, err error) {
	err = v.Catalog.Load(func(r catalog.Row) error {
		rows = append(rows, r)
		return nil
	})
	return rows, err
}
