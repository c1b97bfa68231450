package socket

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer describes the client of a connection. PID is 0 if the client is in another PID namespace.
// The PID is for information, and nothing uses it as a key.
type Peer struct {
	UID, GID uint32
	PID      int32
	Groups   []uint32 // supplementary groups
	Pidfd    int      // readable once the process has ended; -1 = the kernel does not support it
}

// errPeerGone means that the process ended before it was identified.
var errPeerGone = errors.New("peer is gone")

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5). It is the same on amd64 and arm64.
const soPeerPidfd = 77

// ReadPeer returns the kernel's information about the client of fd. The caller must close Pidfd.
func ReadPeer(fd int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	p := Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid, Groups: peerGroups(fd), Pidfd: -1}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
	switch {
	case err == nil:
		unix.CloseOnExec(pidfd)
		p.Pidfd = pidfd
	case errors.Is(err, unix.ESRCH):
		return Peer{}, errPeerGone
	}
	// Other errors mean that the kernel is older. Then only end of file shows that a client ended.
	return p, nil
}

// peerGroups returns the supplementary groups of a peer; nil if the kernel does not support it.
func peerGroups(fd int) []uint32 {
	groups := make([]uint32, 64)
	for range 2 {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			return groups[:size/4]
		}
		if errno != unix.ERANGE {
			return nil
		}
		groups = make([]uint32, size/4+1) // the kernel returned the required size
	}
	return nil
}

// AllowList lists who may connect. Root always may, since root can read the daemon's memory anyway.
type AllowList struct {
	Self uint32 // always allowed
	UIDs []uint32
	GIDs []uint32
}

// NewAllowList returns the list of users and groups. If both are empty, members of the group of the
// socket's directory may connect.
func (s *Socket) NewAllowList(uids, gids []uint32) *AllowList {
	a := &AllowList{Self: uint32(os.Geteuid()), UIDs: uids, GIDs: gids}
	if len(a.UIDs) == 0 && len(a.GIDs) == 0 {
		a.GIDs = []uint32{s.dirGID}
	}
	return a
}

// Allows reports whether a peer may connect.
func (a *AllowList) Allows(p *Peer) bool {
	if p.UID == 0 || p.UID == a.Self || slices.Contains(a.UIDs, p.UID) || slices.Contains(a.GIDs, p.GID) {
		return true
	}
	return slices.ContainsFunc(p.Groups, func(g uint32) bool { return slices.Contains(a.GIDs, g) })
}

// HasPidfd reports whether the kernel supports Peer.Pidfd. It tries it on a new socket pair.
func HasPidfd() bool {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	p, err := ReadPeer(pair[0])
	if err != nil || p.Pidfd < 0 {
		return false
	}
	unix.Close(p.Pidfd)
	return true
}
