package socket

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is who connected. The pid is 0 across PID namespaces: it is for people
// and nothing is keyed on it.
type Peer struct {
	UID, GID uint32
	PID      int32
	Groups   []uint32 // supplementary
	Pidfd    int      // readable once the process is gone; -1 where the kernel has none
}

// errPeerGone: the process was gone before we asked.
var errPeerGone = errors.New("peer is gone")

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5); the same on amd64 and arm64.
const soPeerPidfd = 77

// ReadPeer asks the kernel who connected fd. The caller closes Pidfd.
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
	// Other errors: an older kernel. End of file alone then says when it ends.
	return p, nil
}

// peerGroups returns the supplementary groups, none where the kernel cannot say.
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
		groups = make([]uint32, size/4+1) // the kernel told how many there are
	}
	return nil
}

// AllowList is who may connect. Root may in any case: it could read our memory
// anyway.
type AllowList struct {
	Self uint32 // may always
	UIDs []uint32
	GIDs []uint32
}

// NewAllowList applies the default rule: with no lists set, whoever is in the
// group of the socket's directory.
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

// HasPidfd asks the kernel on a socket pair of ours.
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
