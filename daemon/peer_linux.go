package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peer is who connected. The pid is 0 across PID namespaces: it is for people
// and nothing is keyed on it.
type peer struct {
	uid, gid uint32
	pid      int32
	groups   []uint32 // supplementary
	pidfd    int      // readable once the process is gone; -1 where the kernel has none
}

// errPeerGone: the process was gone before we asked.
var errPeerGone = errors.New("peer is gone")

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5); the same on amd64 and arm64.
const soPeerPidfd = 77

// readPeer asks the kernel who connected fd. The caller closes pidfd.
func readPeer(fd int) (peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	p := peer{uid: cred.Uid, gid: cred.Gid, pid: cred.Pid, groups: peerGroups(fd), pidfd: -1}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
	switch {
	case err == nil:
		unix.CloseOnExec(pidfd)
		p.pidfd = pidfd
	case err == unix.ESRCH:
		return peer{}, errPeerGone
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

// allowList is who may connect. Root may in any case: it could read our memory
// anyway.
type allowList struct {
	self uint32
	uids []uint32
	gids []uint32
}

// newAllowList applies the default rule: with no lists set, whoever is in the
// group of the socket's directory.
func newAllowList(c *Config, dirGID uint32) allowList {
	a := allowList{self: uint32(os.Geteuid()), uids: c.AllowUIDs, gids: c.AllowGIDs}
	if len(a.uids) == 0 && len(a.gids) == 0 {
		a.gids = []uint32{dirGID}
	}
	return a
}

func (a *allowList) allows(p *peer) bool {
	if p.uid == 0 || p.uid == a.self || slices.Contains(a.uids, p.uid) || slices.Contains(a.gids, p.gid) {
		return true
	}
	return slices.ContainsFunc(p.groups, func(g uint32) bool { return slices.Contains(a.gids, g) })
}
