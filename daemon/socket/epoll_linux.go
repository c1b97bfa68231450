package socket

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Epoll waits for events of many descriptors, each under an id that is not 0. Its
// methods may run at once, but for Close, which comes after all others.
type Epoll struct {
	epoll int
	wake  int // eventfd, registered under id 0
}

// NewEpoll makes an Epoll of no descriptors; Close frees it.
func NewEpoll() (*Epoll, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	e := &Epoll{epoll: epoll, wake: wake}
	if err := e.Add(wake, 0, unix.EPOLLIN); err != nil {
		e.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return e, nil
}

// Add asks for events of a descriptor, which stays open until Remove.
func (e *Epoll) Add(fd int, id uint64, events uint32) error {
	// id lies in the 8 bytes that the kernel hands back with an event.
	event := unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Remove ends Add. It may be called for a descriptor that is not registered.
func (e *Epoll) Remove(fd int) {
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, fd, nil) // an error: not registered, which is what we want
}

// Wait waits for events, for some milliseconds or, with -1, without end. It answers
// 0 events when the time is over or a signal came.
func (e *Epoll) Wait(events []unix.EpollEvent, milliseconds int) (n int, err error) {
	n, err = unix.EpollWait(e.epoll, events, milliseconds)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("epoll: %w", err)
	}
	return max(n, 0), nil
}

// EventID is the id of the descriptor that an event is of; 0 once Stop was called.
func EventID(event *unix.EpollEvent) uint64 {
	return uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
}

// Stop has this and every later Wait answer an event of id 0.
func (e *Epoll) Stop() error {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
	_, err := unix.Write(e.wake, one[:])
	return err
}

// Close frees e's own descriptors.
func (e *Epoll) Close() {
	unix.Close(e.wake)
	unix.Close(e.epoll)
}
