package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// ErrInUse means that another process serves or locks the path of the socket.
var ErrInUse = errors.New("socket in use")

// candidate is where the socket may be.
type candidate struct {
	path    string
	dirMode uint32 // of a directory that has to be made
	private bool   // the directory must be ours alone, also when it was there before
}

// candidates lists where the socket may be, best first.
func candidates(path string, m settings.Machine) []candidate {
	if path != "" {
		return []candidate{{path: path, dirMode: 0o2770}}
	}
	list := []candidate{{path: "/run/spliced/spliced.sock", dirMode: 0o2770}}
	if m.RuntimeDir != "" {
		list = append(list, candidate{path: filepath.Join(m.RuntimeDir, "spliced", "spliced.sock"), dirMode: 0o700, private: true})
	}
	tmp := filepath.Join(os.TempDir(), "spliced-"+strconv.Itoa(m.UID), "spliced.sock")
	return append(list, candidate{path: tmp, dirMode: 0o700, private: true})
}

// choose returns the first candidate whose directory is there and ours to write,
// or can be made; for the others it says why not.
func choose(list []candidate) (candidate, error) {
	var failed []error
	for _, p := range list {
		err := prepareDir(p)
		if err == nil {
			return p, nil
		}
		failed = append(failed, err)
	}
	return candidate{}, fmt.Errorf("no directory for the socket: %w", errors.Join(failed...))
}

func prepareDir(p candidate) error {
	dir := filepath.Dir(p.path)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		// Not in Mkdir: the umask would cut the mode, and mkdir ignores setgid.
		if err = unix.Chmod(dir, p.dirMode); err != nil {
			return fmt.Errorf("mode of %s: %w", dir, err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	stat := unix.Stat
	if p.private {
		stat = unix.Lstat // a planted link could lead anywhere
	}
	if err := stat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case p.private && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0):
		return fmt.Errorf("%s is of user %d with mode %#o, not ours alone", dir, st.Uid, st.Mode&0o7777)
	case st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s has mode %#o: anybody could replace the socket", dir, st.Mode&0o7777)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write in %s: %w", dir, err)
	}
	return nil
}

// Socket is the bound engine socket and the lock that makes its path ours.
type Socket struct {
	Listener *seqpacket.Listener
	Path     string
	dirGID   uint32
	lock     *os.File
	bound    unix.Stat_t
}

// dialTimeout bounds the wait for whoever serves the path already.
const dialTimeout = time.Second

// Open binds path, or where that is empty the first place that can be used, and
// accepts from then on. A live socket, or anything that is not a socket, is left
// alone.
func Open(path string, m settings.Machine, backlog int) (*Socket, error) {
	p, err := choose(candidates(path, m))
	if err != nil {
		return nil, err
	}
	lock, err := lockPath(p.path + ".lock")
	if err != nil {
		return nil, err
	}
	s := &Socket{Path: p.path, lock: lock}
	if err := s.bind(backlog); err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// bind needs the lock.
func (s *Socket) bind(backlog int) error {
	if err := removeStale(s.Path); err != nil {
		return err
	}
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Dir(s.Path), &dir); err != nil {
		return fmt.Errorf("stat directory of %s: %w", s.Path, err)
	}
	s.dirGID = dir.Gid
	var err error
	if s.Listener, err = seqpacket.Listen(s.Path, 0o660, backlog); err != nil {
		return err
	}
	if err := unix.Lstat(s.Path, &s.bound); err != nil {
		s.Listener.Close()
		return fmt.Errorf("stat %s: %w", s.Path, err)
	}
	return nil
}

// lockPath holds path locked while the file is open; the kernel lets go when the
// process dies. The file itself stays: removing it would let two processes hold
// locks on two files of one name.
func lockPath(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is locked by a running daemon: %w", path, ErrInUse)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// removeStale removes a socket that nobody answers on. The lock alone does not
// say so: the path may belong to a program that takes no lock.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	conn, err := seqpacket.Dial(path, dialTimeout)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("%s is served by another process: %w", path, ErrInUse)
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	// EPROTOTYPE: a socket of another type answers there. EAGAIN: its queue is full.
	return fmt.Errorf("%s may be served by another process: %w: %w", path, err, ErrInUse)
}

// StopListening ends accept and removes the path if it still is the socket that
// we bound.
func (s *Socket) StopListening() error {
	var now unix.Stat_t
	if err := unix.Lstat(s.Path, &now); err == nil && now.Dev == s.bound.Dev && now.Ino == s.bound.Ino {
		if err := unix.Unlink(s.Path); err != nil {
			return errors.Join(fmt.Errorf("remove %s: %w", s.Path, err), s.Listener.Close())
		}
	}
	return s.Listener.Close()
}

// Unlock lets the next daemon in; last of all, when nothing of us is left that
// two daemons could meet in.
func (s *Socket) Unlock() error { return s.lock.Close() }
