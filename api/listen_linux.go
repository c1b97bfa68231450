package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/trust"
)

// maxSocketPath is sun_path without its terminating zero.
const maxSocketPath = 107

// SocketBeside is the admin socket of a daemon that was told its engine socket only:
// in a directory of its own, which nobody else may enter.
func SocketBeside(engines string) string {
	return filepath.Join(filepath.Dir(engines), "admin", "admin.sock")
}

// ListenUnix opens the trusted admin socket at path: mode 0600 from the moment
// it exists, and only processes of our own user (or root) are accepted. A directory
// that is missing is made, mode 0700; one in which others may write is refused. A socket
// left behind by a dead daemon is replaced; a live one, or anything that is not
// a socket, is left alone and refused with ErrBusy or ErrInvalid. Close removes
// the socket; the lock file path.lock stays, since removing it would race.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) == 0 || len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket: path of %d bytes, want 1 to %d: %w", len(path), maxSocketPath, ErrInvalid)
	}
	if err := ownDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
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

// ownDir makes the directory of the socket, or looks whether others could replace
// what is in it.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is of user %d with mode %#o: others could replace the socket; name one in a directory below it that is made for it, such as %s: %w",
			dir, st.Uid, st.Mode&0o7777, filepath.Join(dir, "admin", "admin.sock"), ErrInvalid)
	}
	return nil
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

// dialUnix connects to an admin socket, if it is the daemon that answers there.
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
