package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// ErrForeign reports a directory that we must not use. Either the directory or a file in
// it belongs to another user, is world-writable or has the wrong type. Or the directory
// has no FORMAT and contains files that are not part of a tier.
var ErrForeign = errors.New("not a directory to use")

// foreign returns an ErrForeign with a text: what is wrong, and what an operator may do.
func foreign(format string, args ...any) error {
	return errkind.With(fmt.Errorf(format, args...), ErrForeign)
}

// mayLieBeside lists the names that a directory without a FORMAT may contain. Such names
// exist if the directory is the root of a file system, or if a first opening was
// interrupted before FORMAT was written.
var mayLieBeside = []string{"lost+found", lockName, keyName, keyName + ".new", formatName + ".new", indexDir, slabDir, profileDir}

// examine checks a directory before anything in it is created or changed. The directory
// and all parts of the tier in it must be owned by us or root and must not be
// world-writable: otherwise other users could make us serve their bytes. The directory
// may be group-writable, as on a cluster that sets the group of a volume. closeToGroup
// later removes the group's access to the contents.
func (v *Volume) examine() error {
	if v.index != vfs.Default {
		return nil
	}
	if err := closeEmpty(v.dir); err != nil {
		return err
	}
	user := os.Geteuid()
	switch err := ours(v.dir, unix.S_IFDIR, user); {
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
		if err := v.examineEntry(e.Name(), user); err != nil {
			return err
		}
	}
	return nil
}

// examineExisting checks for offline functions what examine checks for a daemon, and changes
// nothing. The daemon's user is the owner of most parts of the tier: operators may run
// offline functions as root.
func (v *Volume) examineExisting() error {
	if v.index != vfs.Default {
		return nil
	}
	switch info, err := os.Stat(v.dir); {
	case errors.Is(err, fs.ErrNotExist):
		return errkind.With(fmt.Errorf("%s does not exist", v.dir), ErrNotTier)
	case err != nil:
		return err
	case !info.IsDir():
		return errkind.With(fmt.Errorf("%s is not a directory", v.dir), ErrNotTier)
	}
	switch _, err := os.Lstat(v.path(formatName)); {
	case errors.Is(err, fs.ErrPermission):
		return err // says nothing about what the daemon finds
	case errors.Is(err, fs.ErrNotExist) && !v.used():
		return errkind.With(fmt.Errorf("%s has no file %s", v.dir, formatName), ErrNotTier)
	}
	parts := []string{lockName, formatName, keyName, indexDir, slabDir, profileDir}
	user, owned := os.Geteuid(), map[int]int{}
	for _, name := range parts {
		var st unix.Stat_t
		if unix.Lstat(v.path(name), &st) == nil {
			owned[int(st.Uid)]++
		}
	}
	for uid, n := range owned {
		if n > len(parts)/2 {
			user = uid
		}
	}
	if err := ours(v.dir, unix.S_IFDIR, user); err != nil {
		return err
	}
	for _, name := range parts {
		if err := v.examineEntry(name, user); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// closeEmpty removes the world-write permission of a directory that we own and that is
// still empty, so that examine accepts it.
func closeEmpty(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o002 == 0 || int(st.Uid) != os.Geteuid() {
		return nil // if that is a problem, examine reports it
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return err
	}
	if err := unix.Chmod(dir, st.Mode&0o7775); err != nil {
		return &os.PathError{Op: "chmod", Path: dir, Err: err}
	}
	return nil
}

// examineEntry checks a file or folder of the directory, and the files in the folder, if
// it is part of a tier. It ignores other names.
func (v *Volume) examineEntry(name string, user int) error {
	switch name {
	case lockName, formatName, keyName:
		return ours(v.path(name), unix.S_IFREG, user)
	case indexDir, slabDir, profileDir:
	default:
		return nil
	}
	dir := v.path(name)
	if err := ours(dir, unix.S_IFDIR, user); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ours(v.index.PathJoin(dir, e.Name()), unix.S_IFREG, user); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// The function ours checks the owner, type and permissions of a path. The parameter kind is
// the wanted type (unix.S_IFREG or S_IFDIR); a folder may be a symbolic link to a folder. The
// parameter user is the daemon's user.
func ours(path string, kind uint32, user int) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := owned(path, &st, user); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK && kind == unix.S_IFDIR {
		if err := unix.Stat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if err := owned(path, &st, user); err != nil {
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

func owned(path string, st *unix.Stat_t, user int) error {
	if st.Uid != 0 && int(st.Uid) != user {
		return foreign("%s belongs to user %d, the daemon is user %d: name a directory of its own, or chown this one if its bytes are to be trusted",
			path, st.Uid, user)
	}
	return nil
}

// closeToGroup makes the folders of the directory and the key accessible to our user
// only. It removes the permissions that a cluster gives to the group of a volume.
func (v *Volume) closeToGroup() error {
	if v.index != vfs.Default {
		return nil
	}
	for _, name := range [...]string{indexDir, slabDir, profileDir, keyName} {
		path := v.path(name)
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, unix.ENOENT) && name == keyName {
			continue // version 1 has no key
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
