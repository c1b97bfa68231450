package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// watcher notices that clients are gone: one goroutine polls, for every
// connection, the socket's end of file and the pidfd of the process that
// connected. The pidfd is what tells when the process was killed while a child
// still holds a copy of the socket.
//
// Its loop is also the heartbeat of the process.
type watcher struct {
	epoll int
	wake  int // eventfd

	beat atomic.Int64 // unix nanoseconds of the loop's last turn

	mu struct {
		sync.Mutex
		watched map[uint64]watched // by connection id
	}
}

// watched is whom to tell, without mu and each once at most.
type watched interface {
	peerGone()             // the process that connected is dead
	peerEnded(hungUp bool) // it sends no more; hungUp: nor receives
}

// beatEvery is how often the loop turns without events.
const beatEvery = time.Second

func newWatcher() (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		w := &watcher{epoll: epoll, wake: wake}
		w.mu.watched = map[uint64]watched{}
		if err = w.register(wake, 0, unix.EPOLLIN); err == nil {
			w.beat.Store(time.Now().UnixNano())
			return w, nil
		}
		unix.Close(wake)
	}
	unix.Close(epoll)
	return nil, fmt.Errorf("watch: %w", err)
}

// add watches a connection. id is not 0; pidfd may be -1. Both descriptors stay
// open until remove.
func (w *watcher) add(id uint64, sock, pidfd int, who watched) error {
	w.mu.Lock()
	w.mu.watched[id] = who
	w.mu.Unlock()
	err := w.register(sock, id, unix.EPOLLRDHUP|unix.EPOLLONESHOT)
	if err == nil && pidfd >= 0 {
		err = w.register(pidfd, id, unix.EPOLLIN|unix.EPOLLONESHOT)
	}
	if err != nil {
		w.remove(id, sock, pidfd)
		return fmt.Errorf("watch connection %d: %w", id, err)
	}
	return nil
}

// remove ends add. A call that has begun may still run: it must not use
// descriptors by their number.
func (w *watcher) remove(id uint64, sock, pidfd int) {
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
func (w *watcher) register(fd int, id uint64, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// run polls until stop is called.
func (w *watcher) run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, int(beatEvery/time.Millisecond))
		if err != nil && err != unix.EINTR {
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
				who.peerGone()
			default:
				who.peerEnded(e.Events&unix.EPOLLHUP != 0)
			}
		}
	}
}

// alive reports whether the loop turned lately.
func (w *watcher) alive(now time.Time) bool {
	return now.Sub(time.Unix(0, w.beat.Load())) < 10*beatEvery
}

// stop makes run return.
func (w *watcher) stop() error {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
	_, err := unix.Write(w.wake, one[:])
	return err
}

// close frees the descriptors; run has returned.
func (w *watcher) close() {
	unix.Close(w.wake)
	unix.Close(w.epoll)
}
