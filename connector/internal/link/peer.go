package link

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// peer is the process that listened on the socket when we connected: the daemon, or its parent.
// Once this process is dead, the memory that only it could write no longer changes.
type peer struct {
	fd     int // pidfd; -1 where the kernel has none
	dead   atomic.Bool
	waited atomic.Bool
}

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5); the same on amd64 and arm64.
const soPeerPidfd = 77

// deathGrace is a guess of the time between the closing of a dying process's sockets and the end
// of the process: the kernel closes the sockets first. The method gone waits this long, once per
// peer.
const deathGrace = 50 * time.Millisecond

func newPeer(conn *seqpacket.Conn) *peer {
	fd, err := unix.GetsockoptInt(conn.Fd(), unix.SOL_SOCKET, soPeerPidfd)
	if err != nil {
		fd = -1 // its death can never be detected
	}
	return &peer{fd: fd}
}

// gone reports whether the process is known to be dead.
func (p *peer) gone() bool {
	if p.dead.Load() {
		return true
	}
	if p.fd < 0 {
		return false
	}
	wait := 0
	if !p.waited.Swap(true) {
		wait = int(deathGrace / time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, wait); err != nil || n == 0 {
		return false
	}
	p.dead.Store(true)
	return true
}

func (p *peer) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}
