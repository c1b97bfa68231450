package server

import (
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc"
)

// slots hands out slot memory of one connection. A slot is one run of pages,
// since a reply names it by one offset.
//
// Invariant: pages of a slot go back when the client has released it and no
// operation uses it.
//
// Invariant: a slot has one writer or any number of readers; only the request
// that reads a slot may be the one that writes it.
type slots struct {
	region gpuipc.Region
	within gpuipc.Extent // of the region: where slots lie
	most   int           // slots at once

	mu struct {
		sync.Mutex
		pages  *gpuipc.PageAllocator
		leases map[uint64]*slot
	}
}

// slot is one result of compose, rotate or assemble.
type slot struct {
	lease  uint64
	extent gpuipc.Extent // whole pages
	fresh  bool          // made by the operation that uses it now

	// Guarded by slots.mu.
	readers  int
	writer   bool
	spoilt   bool // the last writer failed: what it holds is undefined
	released bool
}

func newSlots(region gpuipc.Region, within gpuipc.Extent, pageBytes, most int) *slots {
	s := &slots{region: region, within: within, most: most}
	s.mu.pages = gpuipc.NewPageAllocator(within.Len, pageBytes)
	s.mu.leases = map[uint64]*slot{}
	return s
}

// open returns the slot that an operation writes bytes into: the one of lease
// into, or when that is 0 a new one with the id that newID gives. own is the slot
// that the same operation reads, or nil.
func (s *slots) open(into uint64, bytes int64, own *slot, newID func() uint64) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if into != 0 {
		x := s.mu.leases[into]
		switch {
		case x == nil:
			return nil, codes.Refuse(wire.Gone, "slot %d", into)
		case x.extent.Len < bytes:
			return nil, codes.Refuse(wire.Invalid, "slot %d has %d bytes, the result %d", into, x.extent.Len, bytes)
		case x.writer:
			return nil, codes.Refuse(wire.Busy, "slot %d is being written", into)
		case x.readers > 1 || x.readers == 1 && x != own:
			return nil, codes.Refuse(wire.Busy, "slot %d is being read", into)
		}
		x.writer, x.fresh = true, false
		return x, nil
	}
	if len(s.mu.leases) >= s.most {
		return nil, codes.Refuse(wire.Busy, "%d slots, the most of a connection", s.most)
	}
	extent, err := s.mu.pages.AllocRun(max(bytes, 1))
	if err != nil {
		return nil, fmt.Errorf("slot: %w", err)
	}
	extent.Off += s.within.Off
	x := &slot{lease: newID(), extent: extent, fresh: true, writer: true}
	s.mu.leases[x.lease] = x
	return x, nil
}

// done ends the use that open began. A new slot of an operation that failed is
// released: its client never hears of it. One that was there before stays, and
// cannot be read until another operation has written it whole: composing what
// was composed in part would count tokens twice.
func (s *slots) done(x *slot, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.writer, x.spoilt = false, err != nil
	if err != nil && x.fresh && !x.released {
		x.released = true
		delete(s.mu.leases, x.lease)
	}
	s.freeLocked(x)
}

// read returns the slot that holds [off, off+bytes) of the region and keeps its
// pages until doneReading.
func (s *slots) read(lease uint64, off uint64, bytes int64) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.mu.leases[lease]
	if x == nil {
		return nil, codes.Refuse(wire.Gone, "slot %d", lease)
	}
	switch {
	case x.writer:
		return nil, codes.Refuse(wire.Busy, "slot %d is being written", lease)
	case x.spoilt:
		return nil, codes.Refuse(wire.Gone, "slot %d: the last request that wrote it failed", lease)
	}
	if start := uint64(x.extent.Off); off < start || off-start > uint64(x.extent.Len) || int64(off-start)+bytes > x.extent.Len {
		return nil, codes.Refuse(wire.Invalid, "states [%d, +%d) are not inside slot %d [%d, +%d)", off, bytes, lease, start, x.extent.Len)
	}
	x.readers++
	return x, nil
}

func (s *slots) doneReading(x *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.readers--
	s.freeLocked(x)
}

// release ends a lease; false when it is none of ours.
func (s *slots) release(lease uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.mu.leases[lease]
	if x == nil {
		return false
	}
	delete(s.mu.leases, lease)
	x.released = true
	s.freeLocked(x)
	return true
}

func (s *slots) freeLocked(x *slot) {
	if x.released && !x.writer && x.readers == 0 {
		s.mu.pages.Free([]gpuipc.Extent{{Off: x.extent.Off - s.within.Off, Len: x.extent.Len}})
	}
}

// has reports whether lease is that of a slot here.
func (s *slots) has(lease uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return lease != 0 && s.mu.leases[lease] != nil
}

// ref names the first bytes of a slot.
func (s *slots) ref(x *slot, bytes int64) gpuipc.Ref {
	return gpuipc.Ref{Region: s.region, Extents: []gpuipc.Extent{{Off: x.extent.Off, Len: bytes}}}
}

// held is how many slots and bytes are leased.
func (s *slots) held() (leases int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.leases), s.mu.pages.UsedBytes()
}
