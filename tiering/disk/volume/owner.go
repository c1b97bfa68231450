package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// ErrForeign reports a directory that we must not use: it, or something in it, belongs to
// another user, is world-writable or is not what its name says, or it contains other
// things and no FORMAT.
var ErrForeign = errors.New("not a directory to use")

// foreign returns what is wrong and what an operator may do.
func foreign(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), ErrForeign)
}

// mayLieBeside lists the names that an empty directory may contain: those of a file
// system's root, and of an opening that was interrupted before there was a FORMAT.
var mayLieBeside = []string{"lost+found", lockName, keyName, keyName + ".new", formatName + ".new", indexDir, slabDir, profileDir}

// examine runs before anything in a directory is created or changed. Everything in it has
// to be owned by us or root, and not be world-writable: otherwise others could make us
// serve their bytes. The directory itself may be group-writable, like that of a volume
// whose group a cluster has set; its contents are closed to that group (closeToGroup).
func (v *Volume) examine() error {
	if v.index != vfs.Default {
		return nil
	}
	if err := closeEmpty(v.dir); err != nil {
		return err
	}
	switch err := ours(v.dir, unix.S_IFDIR); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it will be created
	case err != nil:
		return err
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	used := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == formatName })
	for _, e := range entries {
		if !used && !slices.Contains(mayLieBeside, e.Name()) {
			return foreign("%s holds %q and no file %s: it is not the directory of a disk tier; name an empty one, or one that is not there yet",
				v.dir, e.Name(), formatName)
		}
		if err := v.examineEntry(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// closeEmpty removes world-write permission from an empty directory of our own, in which
// no other user has put anything yet.
func closeEmpty(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o002 == 0 || int(st.Uid) != os.Geteuid() {
		return nil // examine returns why
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return err
	}
	if err := unix.Chmod(dir, st.Mode&0o7775); err != nil {
		return &os.PathError{Op: "chmod", Path: dir, Err: err}
	}
	return nil
}

// examineEntry checks an entry of the directory that the tier uses, and one level below.
func (v *Volume) examineEntry(name string) error {
	switch name {
	case lockName, formatName, keyName:
		return ours(v.path(name), unix.S_IFREG)
	case indexDir, slabDir, profileDir:
	default:
		return nil
	}
	dir := v.path(name)
	if err := ours(dir, unix.S_IFDIR); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ours(v.index.PathJoin(dir, e.Name()), unix.S_IFREG); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ours checks that a path leads to something of a kind that we or root own.
func ours(path string, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := owned(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK && kind == unix.S_IFDIR {
		if err := unix.Stat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if err := owned(path, &st); err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT != kind {
		return foreign("%s is %s, not %s", path, slab.KindOf(st.Mode), slab.KindOf(kind))
	}
	if st.Mode&0o002 != 0 {
		return foreign("%s is writable by everybody (mode %04o): chmod o-w, or name a directory inside it", path, st.Mode&0o7777)
	}
	return nil
}

func owned(path string, st *unix.Stat_t) error {
	if uid := os.Geteuid(); st.Uid != 0 && int(st.Uid) != uid {
		return foreign("%s belongs to user %d, the daemon is user %d: name a directory of its own, or chown this one if its bytes are to be trusted",
			path, st.Uid, uid)
	}
	return nil
}

// closeToGroup removes the permissions that a cluster gives to the group of a volume: the
// folders and the key are for our user only.
func (v *Volume) closeToGroup() error {
	if v.index != vfs.Default {
		return nil
	}
	for _, name := range [...]string{indexDir, slabDir, profileDir, keyName} {
		path := v.path(name)
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, unix.ENOENT) && name == keyName {
			continue // in version 1
		}
		if err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Mode&0o077 == 0 || int(st.Uid) != os.Geteuid() {
			continue
		}
		err = unix.Chmod(path, st.Mode&0o700)
		if err != nil && !errors.Is(err, unix.EROFS) {
			return &os.PathError{Op: "chmod", Path: path, Err: err}
		}
		v.log.Info().Str("tier", "disk").Str("dir", path).Err(err).Msg("closed to other users")
	}
	return nil
}
