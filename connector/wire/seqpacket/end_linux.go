package seqpacket

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CloseRead wakes local calls that wait to receive, and stops the peer from sending; the peer
// does not see it as the end of the connection. Messages that were sent earlier can still be
// received, until Recv returns ErrClosed.
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

// Drain discards received messages that were not read, including their descriptors. If a
// socket is closed with unread frames, the frames that its peer has not read are lost as
// well: the peer gets a reset instead.
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
