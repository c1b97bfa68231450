package seqpacket

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CloseRead wakes local calls that wait to receive, and makes later sends of the peer fail. The
// peer does not see an end of the connection. Messages that the peer sent earlier can still be
// received; after them Recv returns ErrClosed.
func (c *Conn) CloseRead() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.leave()
	if err := unix.Shutdown(c.fd, unix.SHUT_RD); err != nil && err != unix.ENOTCONN {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// drainFrames bounds Drain, in case a peer keeps sending. It is more than the kernel queues
// for one socket.
const drainFrames = 4096

// Drain discards messages that have arrived and were not read, including their descriptors. Call
// it before Close: closing a socket with unread messages resets the connection, and the peer
// then loses the messages that it has not read yet.
func (c *Conn) Drain() {
	if !c.gate.enter() {
		return
	}
	defer c.leave()
	var frame [1]byte
	var control [controlBytes]byte
	for range drainFrames {
		n, got, _, _, err := unix.Recvmsg(c.fd, frame[:], control[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 && got == 0 {
			return
		}
		if fds, err := rights(control[:got]); err == nil {
			CloseAll(fds)
		}
	}
}
