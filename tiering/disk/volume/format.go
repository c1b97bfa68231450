package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Version is the version of the directory's layout, and of all formats inside that have
// no separate version. When a daemon opens a directory of version 1 (unkeyed), which
// has no key and no seals, it upgrades the directory. No other version is read.
const (
	Version = 2
	unkeyed = 1
)

// Names inside the directory.
const (
	lockName   = "LOCK"
	formatName = "FORMAT"
	indexDir   = "index"
	profileDir = "profiles"
	slabDir    = "slabs"
)

// Why a directory is not opened.
var (
	ErrVersion = errkind.With(errors.New("written by another version"), tier.ErrUnavailable)
	ErrAbsent  = errkind.With(errors.New("mount or move back what belongs there, or begin anew by a restart with disk-create on"), fs.ErrNotExist)
	ErrLocked  = errkind.With(errors.New("another process uses it"), tier.ErrUnavailable)
	// ErrKey reports that KEY is that of another store, and ErrFormat that FORMAT is.
	ErrKey     = errors.New("KEY does not belong to this store: put back its own KEY")
	ErrFormat  = errors.New("FORMAT does not belong to this store: put back its own FORMAT and KEY")
	ErrNotTier = errkind.With(errors.New("not the directory of a disk tier"), tier.ErrInvalid) // only returned by OpenExisting
)

// Format is the content of a directory's FORMAT file. Its granule applies to all slabs,
// so a different granule in the configuration has no effect.
type Format struct {
	Version int // Version, or unkeyed in a directory opened by offline functions
	ID      slab.StoreID
	Granule int64
	binding string // extent.Key.Binding of the store's key; "" = not known
}

// formatHead is the first line of a FORMAT file, for example:
//
//	spliced disk tier
//	version 2
//	store 6f1f…
//	granule 65536
//	key 2c7c…
//	sum 83d1f0a2c9b7e645
//
// The line "key" has the binding of the key to the store, and the line "sum" the xxh3 of the
// lines above it. Releases before these lines write none and ignore them.
const formatHead = "spliced disk tier\n"

func (f *Format) text() []byte {
	b := fmt.Appendf(nil, "%sversion %d\nstore %v\ngranule %d\n", formatHead, Version, f.ID, f.Granule)
	if f.binding != "" {
		b = fmt.Appendf(b, "key %s\n", f.binding)
		b = fmt.Appendf(b, "sum %016x\n", xxh3.Hash(b))
	}
	return b
}

// readFormat reads a directory's format. fs.ErrNotExist means that the directory has no
// FORMAT file. ErrVersion means that it has another version. tier.ErrCorrupt means that
// FORMAT is damaged.
func readFormat(index vfs.FS, dir string) (f Format, err error) {
	b, err := readFile(index, index.PathJoin(dir, formatName), 4096)
	if err != nil {
		return f, err
	}
	text, ok := strings.CutPrefix(string(b), formatHead)
	line, rest, whole := strings.Cut(text, "\n")
	_, scanErr := fmt.Sscanf(line, "version %d", &f.Version)
	if !ok || !whole || scanErr != nil || f.Version < unkeyed || line != fmt.Sprintf("version %d", f.Version) {
		return Format{}, fmt.Errorf("%s is damaged, it has %.60q: %w", formatName, b, errMend)
	}
	if f.Version != unkeyed && f.Version != Version {
		return f, fmt.Errorf("the directory has %.40q, this program reads version %d and %d: %w", line, unkeyed, Version, ErrVersion)
	}
	var id []byte
	n, err := fmt.Sscanf(rest, "store %x\ngranule %d\n", &id, &f.Granule)
	g := f.Granule
	if n != 2 || err != nil || len(id) != len(f.ID) || g < slab.MinGranule || g > slab.MaxGranule || g&(g-1) != 0 {
		return f, fmt.Errorf("%s is damaged, it has %.120q: %w", formatName, b, errMend)
	}
	f.ID = slab.StoreID(id)
	if _, line, ok := strings.Cut(rest, "\nkey "); ok {
		f.binding, _, _ = strings.Cut(line, "\n")
		if string(f.text()) != string(b) { // damage must not make a good key look like another's
			f.binding = ""
		}
	}
	return f, nil
}

// openFormat reads the format of a directory and its key, or creates both in a new
// directory. A directory of version 1 has no key; its format is read, and v.Key stays nil.
func (v *Volume) openFormat(granule int64) (err error) {
	v.Format, err = readFormat(v.index, v.dir)
	switch {
	case err == nil && v.Format.Version == Version:
		return v.readKey()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := rand.Read(v.Format.ID[:]); err != nil {
		return err
	}
	v.Format.Granule = granule
	return v.makeKey(1)
}

// errMend says what an operator does about a damaged or lost FORMAT.
var errMend = errkind.With(errors.New("splicectl disk repair writes it anew"), tier.ErrCorrupt)

var errFormatLost = fmt.Errorf("%s is lost beside %s or %s: %w", formatName, indexDir, slabDir, errMend)

// knowFormat finds out what a damaged or lost FORMAT had: a directory with a key has this
// version, and the headers of its slabs have the store id and granule.
func (v *Volume) knowFormat() (err error) {
	v.Format = Format{Version: Version}
	if err := v.readKey(); err != nil {
		return err
	}
	if v.slabs == nil {
		if v.slabs, err = slab.OpenDir(v.path(slabDir)); err != nil {
			return err
		}
	}
	v.Format.ID, v.Format.Granule, err = slab.Identify(v.slabs)
	return err
}

// Bound reports whether FORMAT says that the key belongs to the store.
func (v *Volume) Bound() bool { return v.Format.binding != "" }

// Bind writes to FORMAT that the key belongs to the store: an extent has shown it. If the
// disk does not take it, FORMAT stays as it is, and the next opening tries again.
func (v *Volume) Bind() error {
	if err := v.WriteFormat(true); err != nil {
		v.log.Warn().Str("tier", "disk").Str("dir", v.dir).Err(err).Msg("that KEY belongs to the store cannot be written to FORMAT")
	}
	v.anchors.close() // FORMAT may be another file now
	v.anchors = nil
	return v.hold()
}

// WriteFormat replaces FORMAT. After a crash it has its old or its new content. With bind, it
// says that the key belongs to the store.
func (v *Volume) WriteFormat(bind bool) error {
	f := v.Format
	if bind {
		f.binding = v.Key.Binding(f.ID)
	}
	if err := replaceFile(v.index, v.dir, formatName, f.text()); err != nil {
		return err
	}
	v.Format = f
	return nil
}

// lockDir locks a directory until the process ends or the result is closed. The lock is a
// flock, which the kernel releases when the process dies for any reason. The file systems
// of tests have their own kind of lock. ErrLocked means that another process has the lock.
func lockDir(index vfs.FS, dir string) (io.Closer, error) {
	if index == vfs.Default {
		return flock(dir)
	}
	c, err := index.Lock(index.PathJoin(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrLocked)
	}
	return c, nil
}

func flock(dir string) (io.Closer, error) {
	f, err := os.OpenFile(dir+"/"+lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, unix.EROFS) {
		f, err = os.Open(dir + "/" + lockName)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
