package socket

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Epoll waits for events of many descriptors, each with a nonzero id. Its methods may be called
// concurrently, except Close, which must be called last.
type Epoll struct {
	epoll int
	wake  int // eventfd, registered under id 0
}

// NewEpoll creates an empty Epoll. Close frees it.
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

// Add registers a descriptor, which must stay open until Remove.
func (e *Epoll) Add(fd int, id uint64, events uint32) error {
	// The 8 bytes that the kernel returns with each event hold the id.
	event := unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Remove unregisters a descriptor. It does nothing if the descriptor is not registered.
func (e *Epoll) Remove(fd int) {
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, fd, nil) // an error means that it is not registered, which is fine
}

// Wait waits for events, for at most the given number of milliseconds; -1 = no limit. It returns 0
// events after the timeout or a signal.
func (e *Epoll) Wait(events []unix.EpollEvent, milliseconds int) (n int, err error) {
	n, err = unix.EpollWait(e.epoll, events, milliseconds)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("epoll: %w", err)
	}
	return max(n, 0), nil
}

// EventID returns the id of an event's descriptor. It is 0 for the event caused by Stop.
func EventID(event *unix.EpollEvent) uint64 {
	return uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
}

// Stop makes a Wait that runs, and every later Wait, return an event with id 0.
func (e *Epoll) Stop() error {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // nonzero in either byte order
	_, err := unix.Write(e.wake, one[:])
	return err
}

// Close frees the descriptors of e itself.
func (e *Epoll) Close() {
	unix.Close(e.wake)
	unix.Close(e.epoll)
}
