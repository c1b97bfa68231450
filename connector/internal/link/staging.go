package link

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Staging allocates parts of one connection's staging region, by first fit. Parts start at
// multiples of profile.PartAlign.
//
// Invariant: holes are sorted, disjoint and never adjacent.
type Staging struct {
	mem []byte

	mu struct {
		sync.Mutex
		holes  []gpuipc.Extent
		freed  chan struct{} // closed and replaced when memory is freed
		closed bool
	}
}

func newStaging(mem []byte) *Staging {
	s := &Staging{mem: mem}
	if len(mem) > 0 {
		s.mu.holes = []gpuipc.Extent{{Len: int64(len(mem)) &^ (profile.PartAlign - 1)}}
	}
	s.mu.freed = make(chan struct{})
	return s
}

// Alloc allocates n bytes. If there is no room, it waits until deadline, and then returns
// ErrBusy, or until ctx ends. It returns ErrFull if n exceeds the region.
func (s *Staging) Alloc(ctx context.Context, n int64, deadline time.Time) (gpuipc.Extent, error) {
	for {
		e, freed, err := s.try(n)
		if err != nil || freed == nil {
			return e, err
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-freed:
			timer.Stop()
		case <-timer.C:
			return gpuipc.Extent{}, fmt.Errorf("%d bytes of staging: timed out waiting for free memory: %w", n, ErrBusy)
		case <-ctx.Done():
			timer.Stop()
			return gpuipc.Extent{}, fmt.Errorf("%d bytes of staging: %v: %w", n, context.Cause(ctx), giveUp(ctx))
		}
	}
}

// TryAlloc is Alloc that does not wait.
func (s *Staging) TryAlloc(n int64) (e gpuipc.Extent, ok bool, err error) {
	e, freed, err := s.try(n)
	return e, freed == nil && err == nil, err
}

// try allocates n bytes. Without room it returns a channel that is closed when memory is freed.
func (s *Staging) try(n int64) (gpuipc.Extent, <-chan struct{}, error) {
	want := padded(n)
	if n < 0 || want > int64(len(s.mem)) {
		return gpuipc.Extent{}, nil, fmt.Errorf("%d bytes of staging, have %d: %w", n, len(s.mem), ErrFull)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return gpuipc.Extent{}, nil, fmt.Errorf("staging: %w", ErrUnavailable)
	}
	for i := range s.mu.holes {
		hole := &s.mu.holes[i]
		if hole.Len < want {
			continue
		}
		e := gpuipc.Extent{Off: hole.Off, Len: n}
		hole.Off += want
		hole.Len -= want
		if hole.Len == 0 {
			s.mu.holes = slices.Delete(s.mu.holes, i, i+1)
		}
		return e, nil, nil
	}
	return gpuipc.Extent{}, s.mu.freed, nil
}

// padded returns the size of a part for n bytes, a multiple of profile.PartAlign.
func padded(n int64) int64 { return (max(n, 1) + profile.PartAlign - 1) &^ (profile.PartAlign - 1) }

// Size returns the size of the region.
func (s *Staging) Size() int64 { return int64(len(s.mem)) }

// Unused returns the number of free bytes, and a channel that is closed when there are more.
func (s *Staging) Unused() (n int64, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hole := range s.mu.holes {
		n += hole.Len
	}
	return n, s.mu.freed
}

// Bytes returns the memory of e.
func (s *Staging) Bytes(e gpuipc.Extent) []byte { return s.mem[e.Off : e.Off+e.Len : e.Off+e.Len] }

// Free frees parts that Alloc or TryAlloc returned.
func (s *Staging) Free(parts ...gpuipc.Extent) {
	if len(parts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range parts {
		e.Len = padded(e.Len)
		s.insertLocked(e)
	}
	close(s.mu.freed)
	s.mu.freed = make(chan struct{})
}

func (s *Staging) insertLocked(e gpuipc.Extent) {
	i, _ := slices.BinarySearchFunc(s.mu.holes, e, func(a, b gpuipc.Extent) int { return int(a.Off - b.Off) })
	s.mu.holes = slices.Insert(s.mu.holes, i, e)
	if i+1 < len(s.mu.holes) && e.Off+e.Len == s.mu.holes[i+1].Off {
		s.mu.holes[i].Len += s.mu.holes[i+1].Len
		s.mu.holes = slices.Delete(s.mu.holes, i+1, i+2)
	}
	if i > 0 && s.mu.holes[i-1].Off+s.mu.holes[i-1].Len == e.Off {
		s.mu.holes[i-1].Len += s.mu.holes[i].Len
		s.mu.holes = slices.Delete(s.mu.holes, i, i+1)
	}
}

// close wakes all waiters.
func (s *Staging) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.closed {
		s.mu.closed = true
		close(s.mu.freed)
		s.mu.freed = make(chan struct{})
	}
}
