package peer

import (
	"container/heap"
	"context"
	"sync"
)

// slots are rights to read a range from a member. Waiting ranges get them in the order in
// which the reads of their copies were started. So several objects arrive one after
// another at full link speed, and an engine can continue with the first object while the
// others are in flight.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting waiters // at most one per worker of a read
}

// waiter waits for a slot. It has a slot when got is closed.
type waiter struct {
	order uint64 // start order of its copy
	at    int    // index in waiters; -1 = removed
	got   chan struct{}
}

// take waits for a slot, which the caller gives back with the method give. The error is the
// context's.
func (s *slots) take(ctx context.Context, order uint64) error {
	s.mu.Lock()
	if s.free > 0 { // then there are no waiters
		s.free--
		s.mu.Unlock()
		return nil
	}
	w := &waiter{order: order, got: make(chan struct{})}
	heap.Push(&s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.got:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	had := w.at < 0
	if !had {
		heap.Remove(&s.waiting, w.at)
	}
	s.mu.Unlock()
	if had {
		s.give()
	}
	return ctx.Err()
}

func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	close(heap.Pop(&s.waiting).(*waiter).got)
}

// waiters implements heap.Interface. The copy that was started first comes first.
type waiters []*waiter

func (w waiters) Len() int           { return len(w) }
func (w waiters) Less(i, j int) bool { return w[i].order < w[j].order }
func (w waiters) Swap(i, j int)      { w[i], w[j] = w[j], w[i]; w[i].at, w[j].at = i, j }
func (w *waiters) Push(x any) {
	x.(*waiter).at = len(*w)
	*w = append(*w, x.(*waiter))
}

func (w *waiters) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	x.at = -1
	return x
}
