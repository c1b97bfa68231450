package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// ErrInUse means that another process serves or locks the path of the socket.
var ErrInUse = errors.New("stop that process, or set socket to another path")

// Socket is the engine socket, bound to its path, and the lock of the path. Only one goroutine may
// call Accept. All other methods may be called concurrently.
type Socket struct {
	// Fixed after Listen.
	Path    string
	from    candidate
	backlog int
	dirGID  uint32

	replaced atomic.Uint64
	trouble  atomic.Pointer[string] // why the path does not lead to this socket now; nil = it does

	mu struct {
		sync.Mutex
		listener *seqpacket.Listener
		lock     *os.File
		dir      unix.Stat_t // of the directory that has the lock
		bound    unix.Stat_t
		stopped  bool
	}
}

// dialTimeout is the longest time that Listen waits for a process that may serve the path already.
const dialTimeout = time.Second

// Reserve locks path or, if path is "", the first usable location. It does not bind the socket yet.
// Unlock ends the reservation.
func Reserve(path string, m settings.Machine) (*Socket, error) {
	p, err := choose(candidates(path, m))
	if err != nil {
		return nil, err
	}
	lock, err := lockPath(p.path + ".lock")
	if err != nil {
		return nil, err
	}
	s := &Socket{Path: p.path, from: p}
	s.mu.lock = lock
	return s, nil
}

// Listen binds the path and starts listening. If a process serves the path, or if a file other than
// a socket is there, it returns an error and changes nothing. It may be called once.
func (s *Socket) Listen(backlog int) error {
	s.backlog = backlog
	if err := removeStale(s.Path); err != nil {
		return err
	}
	listener, err := seqpacket.Listen(s.Path, 0o660, s.backlog)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.adoptLocked(listener)
	s.dirGID = s.mu.dir.Gid
	return err
}

// adoptLocked starts to use a listener that was just bound to the path.
func (s *Socket) adoptLocked(listener *seqpacket.Listener) error {
	err := unix.Lstat(s.Path, &s.mu.bound)
	if err == nil {
		err = unix.Stat(filepath.Dir(s.Path), &s.mu.dir)
	}
	if err != nil {
		listener.Close()
		return fmt.Errorf("stat %s: %w", s.Path, err)
	}
	s.mu.listener = listener
	return nil
}

// Accept waits for the next connection. After StopListening, it returns seqpacket.ErrClosed.
func (s *Socket) Accept() (*seqpacket.Conn, error) {
	for {
		s.mu.Lock()
		listener := s.mu.listener
		s.mu.Unlock()
		conn, err := listener.Accept()
		if !errors.Is(err, seqpacket.ErrClosed) {
			return conn, err
		}
		s.mu.Lock()
		again := !s.mu.stopped && s.mu.listener != listener
		s.mu.Unlock()
		if !again {
			return nil, err
		}
	}
}

// lockPath locks path until the file is closed, which the kernel does when the process dies. The
// file is never removed. If it were, two processes could lock two files of the same name.
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

// removeStale removes a socket that no process serves. Although this daemon has the lock, a program
// that takes no lock may serve the path.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
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
	// EPROTOTYPE means that a socket of another type is served there, EAGAIN that its queue is full.
	return fmt.Errorf("%s may be served by another process: %w: %w", path, err, ErrInUse)
}

// StopListening ends Accept. It removes the path if it still leads to this socket.
func (s *Socket) StopListening() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stopped = true
	if s.mu.listener == nil {
		return nil // Listen was not called
	}
	if s.oursLocked() {
		if err := unix.Unlink(s.Path); err != nil {
			return errors.Join(fmt.Errorf("remove %s: %w", s.Path, err), s.mu.listener.Close())
		}
	}
	return s.mu.listener.Close()
}

// oursLocked reports whether the path leads to the socket that this daemon has bound.
func (s *Socket) oursLocked() bool {
	var now unix.Stat_t
	return unix.Lstat(s.Path, &now) == nil && same(&now, &s.mu.bound)
}

func same(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// Unlock lets the next daemon start. It must be called last, when two daemons can no longer
// conflict.
func (s *Socket) Unlock() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.lock.Close()
}
