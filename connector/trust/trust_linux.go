// Package trust checks whether the process that answers on a unix socket may be taken for the
// daemon. A client checks this before it sends a token or uses an answer, because a process that
// replaced the daemon's socket would receive the token and give the answer.
//
// If only root, the client's user and the owner of the socket's directory can change parts of
// the path, the client trusts that owner and root. Otherwise, as in a volume that the containers
// of a pod share, it trusts only the user id that it was configured to expect.
package trust

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UIDEnv is the environment variable with the user id of the daemon.
const UIDEnv = "SPLICED_DAEMON_UID"

// ErrStranger means that the process that answers is not known to be the daemon.
var ErrStranger = errors.New("not known to be the daemon")

// Check checks the process at the other end of fd, which was connected to path. expected is the
// only trusted user id. nil stands for UIDEnv or, if that is not set, for the users that the
// path allows. An error is one line that says what to do. It wraps ErrStranger, unless a system
// call failed.
func Check(fd int, path string, expected *uint32) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("%s: cannot identify the server: %w", path, err)
	}
	if expected == nil {
		if expected, err = fromEnv(); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if expected != nil {
		if cred.Uid != *expected {
			return fmt.Errorf("%s: served by user %d, expected user %d (%s): %w", path, cred.Uid, *expected, UIDEnv, ErrStranger)
		}
		return nil
	}
	self := uint32(os.Geteuid())
	owner, err := ownerOf(path, self)
	if err != nil {
		return fmt.Errorf("%s: served by user %d, and %w; set %s to the user id that spliced runs as: %w", path, cred.Uid, err, UIDEnv, ErrStranger)
	}
	if cred.Uid != 0 && cred.Uid != owner && cred.Uid != self {
		return fmt.Errorf("%s: served by user %d in a directory of user %d; set %s to the user id that spliced runs as: %w", path, cred.Uid, owner, UIDEnv, ErrStranger)
	}
	return nil
}

// fromEnv returns the user id that the environment names; nil = none.
func fromEnv() (*uint32, error) {
	text := os.Getenv(UIDEnv)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%s is %q, not a user id: %w", UIDEnv, text, ErrStranger)
	}
	uid := uint32(n)
	return &uid, nil
}

// ownerOf returns the owner of the directory of path. It returns an error if a user other than
// root, self and that owner could have replaced a part of the path; the error names that part.
func ownerOf(path string, self uint32) (uint32, error) {
	w := walk{self: self}
	if err := w.to(path); err != nil {
		return 0, err
	}
	owner := w.steps[len(w.steps)-1].st.Uid
	for i := range w.steps {
		if by := w.steps[i].st.Uid; by != 0 && by != self && by != owner {
			return 0, fmt.Errorf("user %d could have replaced files in %s", by, w.steps[i].dir)
		}
	}
	return owner, nil
}

// walk visits the directories that the kernel visits when it resolves a path, including targets
// of symbolic links. It fails at an entry that other users may have created or can replace.
type walk struct {
	self  uint32
	steps []step
	todo  []string
	links int
}

// step is a directory.
type step struct {
	dir string
	st  unix.Stat_t
}

// mostLinks is the number of symbolic links that the kernel follows.
const mostLinks = 40

// to walks from "/" to the directory of path.
func (w *walk) to(path string) error {
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return err
		}
		path = wd + "/" + path // not cleaned: x/.. may lead elsewhere through a link
	}
	w.todo = strings.Split(path[:strings.LastIndexByte(path, '/')], "/")
	if err := w.enter("/"); err != nil {
		return err
	}
	for len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		at := w.steps[len(w.steps)-1].dir
		var err error
		switch name {
		case "", ".":
		case "..":
			err = w.enter(filepath.Dir(at))
		default:
			err = w.next(filepath.Join(at, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// next resolves an entry of the last directory.
func (w *walk) next(path string) error {
	in := &w.steps[len(w.steps)-1]
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if shared(&in.st) && st.Uid != 0 && st.Uid != w.self && st.Uid != in.st.Uid {
		return fmt.Errorf("%s is owned by user %d, in %s, which others may write to", path, st.Uid, in.dir)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return w.enter(path)
	}
	if w.links++; w.links > mostLinks {
		return fmt.Errorf("%s: more than %d symbolic links", path, mostLinks)
	}
	target, err := os.Readlink(path)
	if err != nil {
		return err
	}
	w.todo = append(strings.Split(target, "/"), w.todo...)
	if filepath.IsAbs(target) {
		return w.enter("/")
	}
	return nil
}

// enter adds a directory.
func (w *walk) enter(dir string) error {
	s := step{dir: dir}
	if err := unix.Lstat(dir, &s.st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if shared(&s.st) && s.st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("others could have replaced files in %s (mode %#o)", dir, s.st.Mode&0o7777)
	}
	w.steps = append(w.steps, s)
	return nil
}

// shared reports whether users other than the owner may write in a directory. With an access
// control list, the group bits show the most that the list grants anyone.
func shared(st *unix.Stat_t) bool { return st.Mode&0o022 != 0 }
