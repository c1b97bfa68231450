package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSocketPath is sun_path without its terminating zero.
const maxSocketPath = 107

// ListenUnix opens the trusted admin socket at path: mode 0600 from the moment
// it exists, and only processes of our own user (or root) are accepted. A socket
// left behind by a dead daemon is replaced; a live one, or anything that is not
// a socket, is left alone and refused with ErrBusy or ErrInvalid. Close removes
// the socket; the lock file path.lock stays, since removing it would race.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) == 0 || len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket: path of %d bytes, want 1 to %d: %w", len(path), maxSocketPath, ErrInvalid)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := clearStale(path); err != nil {
		lock.Close()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	config := net.ListenConfig{Control: private}
	ln, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	return &ownListener{UnixListener: ln.(*net.UnixListener), lock: lock}, nil
}

// private sets the mode before bind: Linux gives the new socket file the mode of
// the descriptor, so there is no moment at which others could connect.
func private(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}

// lockFile holds path locked for as long as the file is open. The kernel drops
// the lock when the process dies, however it dies.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is locked by a running daemon: %w", path, ErrBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// clearStale removes a socket that nobody answers on.
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
		return fmt.Errorf("%s is served by another process: %w", path, ErrBusy)
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// ownListener accepts only our own user and root.
type ownListener struct {
	*net.UnixListener
	lock *os.File
}

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if ownPeer(conn) {
			return conn, nil
		}
		conn.Close()
	}
}

func (l *ownListener) Close() error {
	return errors.Join(l.UnixListener.Close(), l.lock.Close())
}

func ownPeer(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
}

// temporary reports errors of accept that pass by themselves.
func temporary(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
