package seqpacket

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kinds of failure. Other errors are system call errors, after which a connection cannot
// be used.
var (
	// ErrClosed: we closed the connection, the peer closed it, or the peer is gone. An empty
	// message counts as closed, because a reader cannot tell the two apart.
	ErrClosed = errors.New("connection closed")
	// ErrTimeout: nothing was received or sent in time; the connection is fine.
	ErrTimeout = errors.New("timed out")
	// ErrTruncated: the message did not fit the buffer; the excess is lost.
	ErrTruncated = errors.New("message truncated")
	// ErrDescriptors: more descriptors, or other control data, than allowed.
	ErrDescriptors = errors.New("unexpected control data")
	// ErrNoRoom: the message carried allowed descriptors, but this process's table is full. The
	// bytes of the message were received.
	ErrNoRoom = errors.New("no room for descriptors")
)

// MaxDescriptors is the maximum number of descriptors in one message, Linux's SCM_MAX_FD. A
// received message may carry FewDescriptors until AllowDescriptors changes this limit, so that
// an untrusted peer cannot fill our descriptor table.
const (
	MaxDescriptors = 253
	FewDescriptors = 8
)

// Conn is one end of a connection.
type Conn struct {
	fd   int
	gate gate

	recvTimeout atomic.Int64 // as set on fd, in ns; 0 = none
	descriptors atomic.Int32 // maximum in one message; 0 = FewDescriptors
}

// New takes over fd, a connected SOCK_SEQPACKET socket, and makes it blocking
// and close-on-exec.
func New(fd int) (*Conn, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	c := &Conn{fd: fd}
	c.gate.users.Store(1)
	return c, nil
}

// Dial connects to path. If the backlog is full, it waits for at most timeout (0 = no bound).
func Dial(path string, timeout time.Duration) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	c, err := New(fd)
	if err != nil {
		return nil, err
	}
	// connect on a unix socket honours the send timeout.
	for begun := time.Now(); ; {
		left := timeout
		if timeout > 0 {
			left = max(timeout-time.Since(begun), 1) // a signal must not restart the timeout
		}
		if err = c.SetSendTimeout(left); err != nil {
			break
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		err = c.SetSendTimeout(0)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connect %s: %w", path, err)
	}
	return c, nil
}

// Pair returns two connected ends.
func Pair() (a, b *Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if a, err = New(fds[0]); err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	if b, err = New(fds[1]); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// Fd returns the descriptor, for socket options; it is valid until Close.
func (c *Conn) Fd() int { return c.fd }

func (c *Conn) leave() {
	if c.gate.leave() {
		unix.Close(c.fd)
	}
}

// Close ends the connection. Calls that are blocked on the connection return ErrClosed. Calls of
// Close after the first do nothing.
func (c *Conn) Close() error {
	if c.gate.shut.Swap(true) {
		return nil
	}
	err := unix.Shutdown(c.fd, unix.SHUT_RDWR)
	if err == unix.ENOTCONN {
		err = nil
	}
	c.leave()
	return err
}

// Send sends one message. fds, if any, are duplicated into the peer and remain the caller's.
// If the socket buffer is full, it waits for at most the send timeout.
func (c *Conn) Send(frame []byte, fds []int) error { return c.send(frame, fds, 0) }

// TrySend is Send that returns ErrTimeout instead of waiting.
func (c *Conn) TrySend(frame []byte, fds []int) error { return c.send(frame, fds, unix.MSG_DONTWAIT) }

func (c *Conn) send(frame []byte, fds []int, flags int) error {
	if len(frame) == 0 {
		return errors.New("send: empty message")
	}
	if len(fds) > MaxDescriptors {
		return fmt.Errorf("send: %d descriptors, at most %d: %w", len(fds), MaxDescriptors, ErrDescriptors)
	}
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.leave()
	for {
		var errno unix.Errno
		if len(fds) == 0 {
			errno = sendTo(c.fd, frame, flags|unix.MSG_NOSIGNAL)
		} else {
			errno = c.sendRights(frame, fds, flags)
		}
		if errno != unix.EINTR {
			return sendError(errno)
		}
	}
}

// sendTo and recvMsg notify Go's scheduler only of system calls that may block. For a call that
// does not block, the notification would take up to a tenth of the time.
func sendTo(fd int, frame []byte, flags int) (errno unix.Errno) {
	if flags&unix.MSG_DONTWAIT != 0 {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)), uintptr(flags), 0, 0)
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)), uintptr(flags), 0, 0)
	}
	return errno
}

func recvMsg(fd int, msg *unix.Msghdr, flags int) (n uintptr, errno unix.Errno) {
	if flags&unix.MSG_DONTWAIT != 0 {
		n, _, errno = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(msg)), uintptr(flags))
	} else {
		n, _, errno = unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(msg)), uintptr(flags))
	}
	return n, errno
}

func (c *Conn) sendRights(frame []byte, fds []int, flags int) unix.Errno {
	err := unix.Sendmsg(c.fd, frame, unix.UnixRights(fds...), nil, flags|unix.MSG_NOSIGNAL)
	var errno unix.Errno
	errors.As(err, &errno)
	return errno
}

func sendError(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EAGAIN:
		return ErrTimeout
	case unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN, unix.ECONNREFUSED:
		return ErrClosed
	default:
		return fmt.Errorf("send: %w", errno)
	}
}

// Recv receives one message into buf and returns the descriptors that it carried, all
// close-on-exec. After ErrTruncated buf holds the first len(buf) bytes. After any error Recv has
// closed the descriptors.
func (c *Conn) Recv(buf []byte) (n int, fds []int, err error) { return c.recv(buf, 0) }

// TryRecv is Recv that returns ErrTimeout instead of waiting.
func (c *Conn) TryRecv(buf []byte) (n int, fds []int, err error) {
	return c.recv(buf, unix.MSG_DONTWAIT)
}

func (c *Conn) recv(buf []byte, flags int) (n int, fds []int, err error) {
	if len(buf) == 0 {
		return 0, nil, errors.New("recv: empty buffer")
	}
	if !c.gate.enter() {
		return 0, nil, ErrClosed
	}
	defer c.leave()
	var control [controlBytes]byte
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	msg := unix.Msghdr{Iov: &iov, Control: &control[0]}
	msg.SetIovlen(1)
	most := c.mostDescriptors()
	var got uintptr
	for reset := false; ; {
		msg.SetControllen(controlRoom(most))
		var errno unix.Errno
		got, errno = recvMsg(c.fd, &msg, flags|unix.MSG_CMSG_CLOEXEC)
		if errno == 0 {
			break
		}
		if errno == unix.ECONNRESET && !reset {
			// The peer closed the connection with unread messages. The kernel reports this error
			// once, before the frames that the peer sent earlier.
			reset = true
			continue
		}
		if errno != unix.EINTR {
			return 0, nil, recvError(errno)
		}
		// A signal interrupted the wait. A new wait would start with the full timeout, so repeated
		// signals could make the wait endless. Return to the caller, which knows its deadline.
		if c.recvTimeout.Load() != 0 {
			return 0, nil, ErrTimeout
		}
	}
	if msg.Controllen > 0 {
		if fds, err = rights(slices.Clone(control[:msg.Controllen])); err != nil {
			return int(got), nil, err
		}
	}
	switch {
	case got == 0:
		err = ErrClosed
	case msg.Flags&unix.MSG_CTRUNC != 0 && len(fds) < most:
		err = fmt.Errorf("recv: %d descriptors taken in, then no more: %w", len(fds), ErrNoRoom)
	case msg.Flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("recv: more than %d descriptors: %w", most, ErrDescriptors)
	case msg.Flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("recv: more than %d bytes: %w", len(buf), ErrTruncated)
	}
	if err != nil {
		CloseAll(fds)
		fds = nil
	}
	return int(got), fds, err
}

// AllowDescriptors sets how many descriptors a message may carry from now on, at most
// MaxDescriptors. A Recv that is already waiting keeps the previous limit.
func (c *Conn) AllowDescriptors(n int) { c.descriptors.Store(int32(min(n, MaxDescriptors))) }

func (c *Conn) mostDescriptors() int {
	if n := c.descriptors.Load(); n > 0 {
		return int(n)
	}
	return FewDescriptors
}

// controlBytes is controlRoom(MaxDescriptors).
const controlBytes = (16 + 4*MaxDescriptors + 7) &^ 7

// controlRoom returns the bytes that one SCM_RIGHTS message of n descriptors needs: a header of
// 16 bytes, then 4 bytes per descriptor, rounded up to a multiple of 8. The kernel drops
// descriptors that do not fit.
func controlRoom(n int) int { return 16 + (4*n+7)&^7 }

func recvError(errno unix.Errno) error {
	switch errno {
	case unix.EAGAIN:
		return ErrTimeout
	case unix.ECONNRESET, unix.ENOTCONN:
		return ErrClosed
	default:
		return fmt.Errorf("recv: %w", errno)
	}
}

// rights extracts the descriptors from control data; any other content is an error.
func rights(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("recv: %v: %w", err, ErrDescriptors)
	}
	for i := range messages {
		got, bad := unix.ParseUnixRights(&messages[i])
		if bad != nil {
			err = fmt.Errorf("recv: control message of type %d: %w", messages[i].Header.Type, ErrDescriptors)
			continue
		}
		fds = append(fds, got...)
	}
	if err != nil {
		CloseAll(fds)
		return nil, err
	}
	return fds, nil
}

// SetRecvTimeout bounds each later Recv; 0 = no bound. A Recv may return ErrTimeout early, or up
// to one timer tick (at most 4 ms) late. Setting the current value again costs no system call.
func (c *Conn) SetRecvTimeout(d time.Duration) error {
	if c.recvTimeout.Load() == int64(d) {
		return nil
	}
	if err := c.setTimeout(unix.SO_RCVTIMEO, d); err != nil {
		return err
	}
	c.recvTimeout.Store(int64(d))
	return nil
}

// SetSendTimeout bounds each later Send, 0 = no bound.
func (c *Conn) SetSendTimeout(d time.Duration) error { return c.setTimeout(unix.SO_SNDTIMEO, d) }

func (c *Conn) setTimeout(option int, d time.Duration) error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.leave()
	if d < 0 || d > 0 && d < time.Microsecond {
		d = time.Microsecond // 0 would mean no bound
	}
	tv := unix.NsecToTimeval(int64(d))
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, option, &tv); err != nil {
		return fmt.Errorf("time-out %v: %w", d, err)
	}
	return nil
}

// AwaitHangup blocks until the peer can send nothing more (it closed, called CloseWrite or is
// gone), or until Close. It does not read, and messages do not wake it.
func (c *Conn) AwaitHangup() error {
	_, err := c.poll(unix.POLLRDHUP, -1)
	return err
}

// Readable reports whether a message is queued or the connection has ended.
func (c *Conn) Readable() bool {
	n, err := c.poll(unix.POLLIN, 0)
	return n > 0 || err != nil
}

// AwaitWritable waits, for at most d, until a retry of TrySend may succeed or the connection
// has ended. It returns ErrTimeout after d.
func (c *Conn) AwaitWritable(d time.Duration) error {
	// d is rounded up to milliseconds, because a wait of 0 ms would make the caller spin.
	n, err := c.poll(unix.POLLOUT, int((d+time.Millisecond-1)/time.Millisecond))
	if err == nil && n == 0 {
		err = ErrTimeout
	}
	return err
}

// poll waits up to ms milliseconds, -1 = no bound, for events or a hang-up.
func (c *Conn) poll(events int16, ms int) (n int, err error) {
	if !c.gate.enter() {
		return 0, ErrClosed
	}
	defer c.leave()
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: events}}
	for {
		n, err = unix.Poll(fds, ms)
		switch {
		case err == nil:
			return n, nil
		case err != unix.EINTR:
			return 0, fmt.Errorf("poll: %w", err)
		case ms >= 0:
			return 0, nil // a call with a bound may end early
		}
	}
}

// CloseWrite signals the peer that no more messages will come. Receiving continues.
func (c *Conn) CloseWrite() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.leave()
	if err := unix.Shutdown(c.fd, unix.SHUT_WR); err != nil && err != unix.ENOTCONN {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// CloseAll closes descriptors that are not needed.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
