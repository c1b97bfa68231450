package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// volume is an open directory. It is made anew when the directory is opened
// again, after everybody has let go of the one before.
type volume struct {
	index   vfs.FS // of everything but slabs
	dir     string
	lock    io.Closer
	format  format
	slabs   slab.FS
	set     *slab.Set
	space   *slab.Space
	catalog *catalog.Catalog

	slabBytes     atomic.Int64 // of all slab files
	reads, writes operations   // running

	growing  sync.Mutex // held while a slab is made
	profiles sync.Mutex // held while one is written

	// Guarded by the tier's lock.
	capacity  int64             // bytes that slabs hold
	frees     uint64            // times that space came free
	dirty     map[uint32]bool   // slabs written since the last sync
	failures  int               // syncs of data that failed
	lost      int64             // bytes given up after writes that failed, no part of capacity
	badWrites int               // in a row
	highest   uint64            // generation that was seen
	flying    map[*write]uint64 // writes on their way to a row: no lower generation will be theirs
	writers   int               // running
	stopping  bool
}

func (v *volume) path(name string) string { return v.index.PathJoin(v.dir, name) }

// addSlab counts a slab.
func (v *volume) addSlab(s slab.SlabInfo) {
	v.slabBytes.Add(s.Bytes)
	granule := v.format.granule
	v.capacity += s.Bytes/granule*granule - granule
}

// openVolume opens a directory, which is locked before anything is changed in it.
func openVolume(cfg *Config) (v *volume, err error) {
	v = &volume{index: cfg.Index, dir: cfg.Dir, slabs: cfg.Slabs, dirty: map[uint32]bool{}, flying: map[*write]uint64{}}
	v.reads.now, v.writes.now = cfg.ticks, cfg.ticks
	if v.index == nil {
		v.index = vfs.Default
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close())
			v = nil
		}
	}()
	if err := makeDirs(v.index, cfg.Dir); err != nil {
		return v, err
	}
	if v.lock, err = lockDir(v.index, cfg.Dir); err != nil {
		return v, err
	}
	if v.format, err = openFormat(v.index, cfg.Dir, cfg.GranuleBytes); err != nil {
		return v, err
	}
	if err := v.openSlabs(cfg.SlabBytes, cfg.Workers); err != nil {
		return v, err
	}
	if len(v.set.Slabs()) > 0 {
		// Else a catalogue that was lost would be begun anew, and everything with it.
		if err := v.haveCatalog(indexDir); err != nil {
			return v, err
		}
	}
	return v, v.openCatalog(indexDir, cfg.Log)
}

// haveCatalog says whether there is a catalogue, by the file that Pebble looks for
// before it decides to make a new one.
func (v *volume) haveCatalog(name string) error {
	list, err := v.index.List(v.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range list {
		if strings.HasPrefix(file, "marker.manifest") {
			return nil
		}
	}
	return fmt.Errorf("disk: the catalogue in %s is lost: %w", v.path(name), tier.ErrCorrupt)
}

// openSlabs opens the slab files, which are as they are; bytes is for new ones.
func (v *volume) openSlabs(bytes int64, workers int) (err error) {
	if v.slabs == nil {
		if v.slabs, err = slab.OpenDir(filepath.Join(v.dir, slabDir)); err != nil {
			return err
		}
	}
	g := v.format.granule
	v.space = slab.NewSpace(g)
	v.set, err = slab.OpenSet(v.slabs, slab.SetOptions{
		StoreID: v.format.id, SlabBytes: max(bytes&^(g-1), 2*g), Granule: g, Width: min(workers, slab.MaxWidth),
	})
	if err != nil {
		return fmt.Errorf("disk: slabs: %w", err)
	}
	return nil
}

func (v *volume) openCatalog(name string, log zerolog.Logger) (err error) {
	v.catalog, err = catalog.Open(v.index, v.path(name), catalog.Options{StoreID: v.format.id, Log: log})
	if err != nil {
		return fmt.Errorf("disk: catalogue: %w", err)
	}
	return nil
}

// makeDirs makes the directory and those inside it, but not its parent: where
// that is missing, a disk is not mounted.
func makeDirs(index vfs.FS, dir string) error {
	if _, err := index.Stat(index.PathDir(dir)); err != nil {
		return err
	}
	for _, name := range [...]string{"", indexDir, slabDir, profileDir} {
		if err := index.MkdirAll(index.PathJoin(dir, name), 0o700); err != nil {
			return fmt.Errorf("%w: %w", err, fs.ErrNotExist) // whatever the reason
		}
	}
	if err := syncDir(index, index.PathDir(dir)); err != nil {
		return err
	}
	return syncDir(index, dir)
}

// close closes what is open, the lock last.
func (v *volume) close() error {
	var errs []error
	if v.catalog != nil {
		errs = append(errs, v.catalog.Close())
	}
	if v.set != nil {
		errs = append(errs, v.set.Close())
	}
	if v.lock != nil {
		errs = append(errs, v.lock.Close())
	}
	return errors.Join(errs...)
}
