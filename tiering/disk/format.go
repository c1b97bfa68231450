package disk

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// Version is that of the directory's format: of what lies where in it, and of all
// formats inside that do not name their own. No other is read.
const Version = 1

// Names inside the directory, beside profileDir.
const (
	lockName   = "LOCK"
	formatName = "FORMAT"
	indexDir   = "index"
	slabDir    = "slabs"
)

// Why a directory is not opened.
var (
	ErrVersion = fmt.Errorf("disk: written by another version: %w", tiering.ErrUnavailable)
	ErrLocked  = fmt.Errorf("disk: locked by another process: %w", tiering.ErrUnavailable)
)

// formatHead begins a FORMAT file, which reads
//
//	spliced disk tier
//	version 1
//	store 6f1f…
const formatHead = "spliced disk tier\n"

func formatText(id slab.StoreID) []byte {
	return fmt.Appendf(nil, "%sversion %d\nstore %v\n", formatHead, Version, id)
}

// readFormat answers the store id of a directory. fs.ErrNotExist: it has none yet.
func readFormat(index vfs.FS, dir string) (id slab.StoreID, err error) {
	b, err := readFile(index, index.PathJoin(dir, formatName), 4096)
	if err != nil {
		return id, err
	}
	rest, ok := strings.CutPrefix(string(b), formatHead)
	if !ok {
		return id, fmt.Errorf("disk: %s begins with %.20q: %w", formatName, b, ErrVersion)
	}
	line, rest, _ := strings.Cut(rest, "\n")
	if line != fmt.Sprintf("version %d", Version) {
		return id, fmt.Errorf("disk: the directory has %s, this program reads version %d: %w", line, Version, ErrVersion)
	}
	text, ok := strings.CutPrefix(strings.TrimSuffix(rest, "\n"), "store ")
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != len(id) {
		return id, fmt.Errorf("disk: %s names the store %.40q: %w", formatName, rest, tiering.ErrCorrupt)
	}
	return slab.StoreID(raw), nil
}

// openFormat reads the format of a directory or, in one that was not used before,
// writes it. What has slabs or an index but no format is not ours to begin anew.
func openFormat(index vfs.FS, dir string) (id slab.StoreID, err error) {
	id, err = readFormat(index, dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	for _, name := range [...]string{indexDir, slabDir} {
		if list, err := index.List(index.PathJoin(dir, name)); err == nil && len(list) > 0 {
			return id, fmt.Errorf("disk: %s is missing beside %s: %w", formatName, name, tiering.ErrCorrupt)
		}
	}
	if _, err := rand.Read(id[:]); err != nil {
		return id, err
	}
	return id, replaceFile(index, dir, formatName, formatText(id))
}

// lockDir takes the lock of a directory, for as long as the process lives or
// until the answer is closed. Ours is flock, which is let go of when the process
// dies, however it dies; file systems of tests bring their own.
func lockDir(cfg *Config) (io.Closer, error) {
	if cfg.Index != nil {
		c, err := cfg.Index.Lock(cfg.Index.PathJoin(cfg.Dir, lockName))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, ErrLocked)
		}
		return c, nil
	}
	return flock(cfg.Dir)
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
