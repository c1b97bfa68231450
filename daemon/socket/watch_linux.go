package socket

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher reports clients that end. One goroutine polls two descriptors per connection: the socket,
// for end of file, and the pidfd of the process that connected. The pidfd shows that the process
// was killed, even if a child still has a copy of the socket.
//
// The loop of the watcher is also the daemon's heartbeat.
type Watcher struct {
	epoll *Epoll

	beat atomic.Int64 // unix nanoseconds of the latest iteration of the loop

	mu struct {
		sync.Mutex
		watched map[uint64]Watched // by connection id
	}
}

// Watched is notified without a lock held, and at most once by each method.
type Watched interface {
	PeerGone()             // the process that connected is dead
	PeerEnded(hungUp bool) // the client has stopped sending; hungUp: it cannot receive either
}

// beatEvery is the longest time between two iterations of the loop.
const beatEvery = time.Second

// NewWatcher creates a watcher. Run starts it.
func NewWatcher() (*Watcher, error) {
	epoll, err := NewEpoll()
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	w := &Watcher{epoll: epoll}
	w.mu.watched = map[uint64]Watched{}
	w.beat.Store(time.Now().UnixNano())
	return w, nil
}

// Add watches a connection. id must not be 0; pidfd may be -1. Both descriptors must stay
// open until Remove.
func (w *Watcher) Add(id uint64, sock, pidfd int, who Watched) error {
	w.mu.Lock()
	w.mu.watched[id] = who
	w.mu.Unlock()
	err := w.epoll.Add(sock, id, unix.EPOLLRDHUP|unix.EPOLLONESHOT)
	if err == nil && pidfd >= 0 {
		err = w.epoll.Add(pidfd, id, unix.EPOLLIN|unix.EPOLLONESHOT)
	}
	if err != nil {
		w.Remove(id, sock, pidfd)
		return fmt.Errorf("watch connection %d: %w", id, err)
	}
	return nil
}

// Remove stops watching. A call of Watched that has begun may still run, so it must not use the
// descriptors by number.
func (w *Watcher) Remove(id uint64, sock, pidfd int) {
	w.mu.Lock()
	delete(w.mu.watched, id)
	w.mu.Unlock()
	w.epoll.Remove(sock)
	if pidfd >= 0 {
		w.epoll.Remove(pidfd)
	}
}

// Run polls until Stop is called.
func (w *Watcher) Run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := w.epoll.Wait(events, int(beatEvery/time.Millisecond))
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		w.beat.Store(time.Now().UnixNano())
		for _, e := range events[:n] {
			id := EventID(&e)
			if id == 0 {
				return nil
			}
			w.mu.Lock()
			who := w.mu.watched[id]
			w.mu.Unlock()
			switch {
			case who == nil:
			case e.Events&unix.EPOLLIN != 0: // only pidfds are registered for EPOLLIN
				who.PeerGone()
			default:
				who.PeerEnded(e.Events&unix.EPOLLHUP != 0)
			}
		}
	}
}

// Alive reports whether the loop has run in the last ten intervals.
func (w *Watcher) Alive(now time.Time) bool {
	return now.Sub(time.Unix(0, w.beat.Load())) < 10*beatEvery
}

// Stop makes Run return.
func (w *Watcher) Stop() error { return w.epoll.Stop() }

// Close frees the watcher's descriptors. Run must have returned.
func (w *Watcher) Close() { w.epoll.Close() }
