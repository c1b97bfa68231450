package seqpacket

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CloseRead wakes calls that wait to receive, here, and ends sending for the
// peer, who does not see the end of the connection by it. What was sent before
// can still be received, until Recv returns ErrClosed.
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

// drainFrames bounds Drain: a peer that keeps sending is not waited for. It is
// more than the kernel queues for one socket.
const drainFrames = 4096

// Drain throws away what has been received and not read, descriptors too. A
// socket that is closed with frames unread takes the frames that its peer has
// not read with it: the peer gets a reset in their place.
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
