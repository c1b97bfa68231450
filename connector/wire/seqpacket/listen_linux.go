package seqpacket

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Listener accepts connections on a path. It removes no path: neither one that already exists,
// nor its own at Close. The owner of the directory decides whether a path is stale.
type Listener struct {
	fd   int
	gate gate
}

// Listen binds path with the permissions mode (before any client can connect) and then
// accepts connections.
func Listen(path string, mode uint32, backlog int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		// Until listen is called, the kernel refuses connections, so no process can use the
		// wider mode that bind gave the path.
		if err = unix.Chmod(path, mode); err == nil {
			err = unix.Listen(fd, backlog)
		}
		if err != nil {
			err = errors.Join(err, unix.Unlink(path))
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	l := &Listener{fd: fd}
	l.gate.users.Store(1)
	return l, nil
}

// Accept waits for the next connection; ErrClosed after Close.
func (l *Listener) Accept() (*Conn, error) {
	if !l.gate.enter() {
		return nil, ErrClosed
	}
	defer l.leave()
	for !l.gate.shut.Load() {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			return New(fd)
		case err == unix.EINTR || err == unix.ECONNABORTED:
		case l.gate.shut.Load():
			return nil, ErrClosed
		default:
			return nil, fmt.Errorf("accept: %w", err)
		}
	}
	return nil, ErrClosed
}

func (l *Listener) leave() {
	if l.gate.leave() {
		unix.Close(l.fd)
	}
}

// Close stops accepting and wakes a blocked Accept.
func (l *Listener) Close() error {
	if l.gate.shut.Swap(true) {
		return nil
	}
	err := unix.Shutdown(l.fd, unix.SHUT_RDWR)
	l.leave()
	return err
}
