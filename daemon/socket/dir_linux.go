package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// dirMode is the mode of a directory created for a socket. Members of the group may enter it and
// connect. Only the owner may create files in it.
const dirMode = 0o2750

// olderDirMode is the mode of a directory created by an older release. With it, members of the
// group could replace the socket.
const olderDirMode = 0o2770

// candidate is a possible location of the socket.
type candidate struct {
	path    string
	private bool // the directory must belong to this user alone, even if it existed before
}

// candidates lists possible locations of the socket, best first.
func candidates(path string, m settings.Machine) []candidate {
	if path != "" {
		return []candidate{{path: path}}
	}
	list := []candidate{{path: "/run/spliced/spliced.sock"}}
	if m.RuntimeDir != "" {
		list = append(list, candidate{path: filepath.Join(m.RuntimeDir, "spliced", "spliced.sock"), private: true})
	}
	tmp := filepath.Join(os.TempDir(), "spliced-"+strconv.Itoa(m.UID), "spliced.sock")
	return append(list, candidate{path: tmp, private: true})
}

// choose returns the first candidate whose directory can be created, or exists and can be written
// to. The error lists why all candidates were rejected.
func choose(list []candidate) (candidate, error) {
	var failed []error
	for _, p := range list {
		err := prepareDir(p)
		if err == nil {
			return p, nil
		}
		failed = append(failed, err)
	}
	return candidate{}, fmt.Errorf("no usable directory for the socket: %w", errors.Join(failed...))
}

// prepareDir creates the directory of a candidate. It returns an error if an existing directory is
// not suitable.
func prepareDir(p candidate) error {
	dir := filepath.Dir(p.path)
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		mode := uint32(dirMode)
		if p.private {
			mode = 0o700
		}
		return setMode(dir, mode)
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	var st unix.Stat_t
	stat := unix.Stat
	if p.private {
		stat = unix.Lstat // do not follow a link, which others may have planted
	}
	if err := stat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if own := int(st.Uid) == os.Geteuid(); own && !p.private && st.Mode == unix.S_IFDIR|olderDirMode {
		if err := setMode(dir, dirMode); err != nil {
			return err
		}
		st.Mode = unix.S_IFDIR | dirMode
	}
	if err := suits(dir, &st, p.private); err != nil {
		return err
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write in %s: %w", dir, err)
	}
	return nil
}

// suits returns an error if other users could replace a socket in an existing directory.
func suits(dir string, st *unix.Stat_t, private bool) error {
	mode := st.Mode & 0o7777
	own := int(st.Uid) == os.Geteuid()
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case private && (!own || mode&0o077 != 0):
		return fmt.Errorf("%s is owned by user %d with mode %#o, want this user and no access by others", dir, st.Uid, mode)
	case !own && st.Uid != 0:
		return fmt.Errorf("%s is owned by user %d, who could replace the socket", dir, st.Uid)
	case mode&0o022 != 0 && mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s has mode %#o: others could replace the socket; use a directory of its own below it, such as %s, or set the sticky bit",
			dir, mode, filepath.Join(dir, "daemon", "spliced.sock"))
	}
	return nil
}

// setMode sets the mode of a directory of this user, since Mkdir applies the umask and ignores
// setgid. It uses a descriptor: users who can write to the parent directory could replace the
// directory by a link meanwhile.
func setMode(dir string, mode uint32) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s has changed its owner to user %d", dir, st.Uid)
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err != nil {
		return fmt.Errorf("mode of %s: %w", dir, err)
	}
	return nil
}
