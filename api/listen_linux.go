package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/trust"

	"github.com/spliced-kv/spliced/policy/errkind"
)

// maxSocketPath is sun_path without its terminating zero.
const maxSocketPath = 107

// SocketBeside returns the default path of the admin socket of a daemon with the given engine
// socket. It is in a separate directory, which only the owner may enter.
func SocketBeside(engines string) string {
	return filepath.Join(filepath.Dir(engines), "admin", "admin.sock")
}

// AdminListener is the trusted admin socket. It accepts only our own user and root.
type AdminListener struct {
	path string
	mu   struct {
		sync.Mutex
		net    *net.UnixListener
		lock   *os.File
		bound  os.FileInfo // the file of the listening socket
		closed bool
	}
}

// ListenUnix opens the trusted admin socket at path. The socket has mode 0600 from the moment it
// exists, and accepts only processes of our own user or root. ListenUnix creates a missing
// directory with mode 0700, and refuses one in which others may write. It replaces the socket of
// a dead daemon. It returns ErrBusy if a daemon serves the socket, and ErrInvalid if the path is
// something other than a socket. Close removes the socket, but not the lock file path.lock,
// since removing that would race.
func ListenUnix(path string) (*AdminListener, error) {
	if len(path) == 0 || len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket: path of %d bytes, want 1 to %d: %w", len(path), maxSocketPath, ErrInvalid)
	}
	l := &AdminListener{path: path}
	if err := l.bindLocked(); err != nil { // l is not shared yet
		return nil, err
	}
	return l, nil
}

// TakeBack makes the path lead to l again if the socket or its directory was removed or replaced.
// The result found describes what was at the path instead; it is empty if nothing was wrong.
func (l *AdminListener) TakeBack() (found string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed || l.oursLocked() {
		return "", nil
	}
	found = "nothing"
	if now, err := os.Lstat(l.path); err == nil {
		found = now.Mode().String()
	}
	old := l.mu.net
	if err := l.bindLocked(); err != nil {
		return found, err
	}
	old.SetUnlinkOnClose(false)
	return found, old.Close() // Accept continues with the new one
}

// oursLocked reports whether the path leads to l.
func (l *AdminListener) oursLocked() bool {
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(now, l.mu.bound)
}

func (l *AdminListener) bindLocked() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("admin socket: %w", err)
		}
	}()
	if err := ownDir(filepath.Dir(l.path)); err != nil {
		return err
	}
	lock, err := l.lockLocked()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && lock != l.mu.lock {
			lock.Close()
		}
	}()
	if err := clearStale(l.path); err != nil {
		return err
	}
	config := net.ListenConfig{Control: private}
	ln, err := config.Listen(context.Background(), "unix", l.path)
	if err != nil {
		return err
	}
	bound, err := os.Lstat(l.path)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	if lock != l.mu.lock && l.mu.lock != nil {
		l.mu.lock.Close() // the lock file of a directory that is no longer at the path
	}
	l.mu.net, l.mu.lock, l.mu.bound = ln.(*net.UnixListener), lock, bound
	return nil
}

// lockLocked returns the lock file of the path. l may already hold this lock.
func (l *AdminListener) lockLocked() (*os.File, error) {
	path := l.path + ".lock"
	if l.mu.lock != nil {
		held, err := l.mu.lock.Stat()
		if now, missing := os.Lstat(path); err == nil && missing == nil && os.SameFile(now, held) {
			return l.mu.lock, nil
		}
	}
	return lockFile(path)
}

// private sets the mode of the socket's descriptor before bind. Linux gives the new socket file
// that mode, so there is no moment at which others could connect.
func private(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}

// ownDir creates the directory of the socket, or checks that others cannot replace its contents.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is owned by user %d with mode %#o: others could replace the socket; use a directory of its own below it, such as %s: %w",
			dir, st.Uid, st.Mode&0o7777, filepath.Join(dir, "admin", "admin.sock"), ErrInvalid)
	}
	return nil
}

// lockFile opens and locks the file at path. The lock is released when the returned file is
// closed, and by the kernel when the process dies.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errkind.With(fmt.Errorf("%s is locked by a running daemon: stop it, or set another admin-socket", path), ErrBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// clearStale removes a socket that no process serves.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket: %w", path, ErrInvalid)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		conn.Close()
		return errkind.With(fmt.Errorf("%s is served by another process: stop it, or set another admin-socket", path), ErrBusy)
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// Accept implements net.Listener.
func (l *AdminListener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		ln := l.mu.net
		l.mu.Unlock()
		conn, err := ln.AcceptUnix()
		if err != nil {
			l.mu.Lock()
			replaced := l.mu.net != ln
			l.mu.Unlock()
			if replaced {
				continue
			}
			return nil, err
		}
		if ownPeer(conn) {
			return conn, nil
		}
		conn.Close()
	}
}

// Addr implements net.Listener.
func (l *AdminListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener.
func (l *AdminListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return net.ErrClosed
	}
	l.mu.closed = true
	l.mu.net.SetUnlinkOnClose(l.oursLocked())
	return errors.Join(l.mu.net.Close(), l.mu.lock.Close())
}

// dialUnix connects to an admin socket, and checks that the daemon serves it.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err == nil {
		if failed := raw.Control(func(fd uintptr) { err = trust.Check(int(fd), path, nil) }); failed != nil {
			err = failed
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func ownPeer(conn *net.UnixConn) bool {
	cred, ok := peerOf(conn)
	if !ok {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
}

// temporary reports whether an error of accept is transient.
func temporary(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
