package socket

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher notices that clients are gone: one goroutine polls, for every
// connection, the socket's end of file and the pidfd of the process that
// connected. The pidfd is what tells when the process was killed while a child
// still holds a copy of the socket.
//
// Its loop is also the heartbeat of the process.
type Watcher struct {
	epoll int
	wake  int // eventfd

	beat atomic.Int64 // unix nanoseconds of the loop's last turn

	mu struct {
		sync.Mutex
		watched map[uint64]Watched // by connection id
	}
}

// Watched is whom to tell, without mu and each once at most.
type Watched interface {
	PeerGone()             // the process that connected is dead
	PeerEnded(hungUp bool) // it sends no more; hungUp: nor receives
}

// beatEvery is how often the loop turns without events.
const beatEvery = time.Second

// NewWatcher makes a watcher; nothing runs yet.
func NewWatcher() (*Watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		w := &Watcher{epoll: epoll, wake: wake}
		w.mu.watched = map[uint64]Watched{}
		if err = w.register(wake, 0, unix.EPOLLIN); err == nil {
			w.beat.Store(time.Now().UnixNano())
			return w, nil
		}
		unix.Close(wake)
	}
	unix.Close(epoll)
	return nil, fmt.Errorf("watch: %w", err)
}

// Add watches a connection. id is not 0; pidfd may be -1. Both descriptors stay
// open until Remove.
func (w *Watcher) Add(id uint64, sock, pidfd int, who Watched) error {
	w.mu.Lock()
	w.mu.watched[id] = who
	w.mu.Unlock()
	err := w.register(sock, id, unix.EPOLLRDHUP|unix.EPOLLONESHOT)
	if err == nil && pidfd >= 0 {
		err = w.register(pidfd, id, unix.EPOLLIN|unix.EPOLLONESHOT)
	}
	if err != nil {
		w.Remove(id, sock, pidfd)
		return fmt.Errorf("watch connection %d: %w", id, err)
	}
	return nil
}

// Remove ends Add. A call that has begun may still run: it must not use
// descriptors by their number.
func (w *Watcher) Remove(id uint64, sock, pidfd int) {
	w.mu.Lock()
	delete(w.mu.watched, id)
	w.mu.Unlock()
	// Errors: not registered, which is what we want.
	_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, sock, nil)
	if pidfd >= 0 {
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, pidfd, nil)
	}
}

// register puts id into the 8 bytes that the kernel hands back with an event.
func (w *Watcher) register(fd int, id uint64, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Run polls until Stop is called.
func (w *Watcher) Run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, int(beatEvery/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		w.beat.Store(time.Now().UnixNano())
		for _, e := range events[:max(n, 0)] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if id == 0 {
				return nil
			}
			w.mu.Lock()
			who := w.mu.watched[id]
			w.mu.Unlock()
			switch {
			case who == nil:
			case e.Events&unix.EPOLLIN != 0: // asked for on pidfds only
				who.PeerGone()
			default:
				who.PeerEnded(e.Events&unix.EPOLLHUP != 0)
			}
		}
	}
}

// Alive reports whether the loop turned lately.
func (w *Watcher) Alive(now time.Time) bool {
	return now.Sub(time.Unix(0, w.beat.Load())) < 10*beatEvery
}

// Stop makes Run return.
func (w *Watcher) Stop() error {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
	_, err := unix.Write(w.wake, one[:])
	return err
}

// Close frees the descriptors; Run has returned.
func (w *Watcher) Close() {
	unix.Close(w.wake)
	unix.Close(w.epoll)
}
