// Package slots allocates the memory of one connection for results of compose, rotate,
// assemble and replay.
package slots

import (
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/gpuipc"
)

// Slots allocates the slot memory of one connection. A slot is one run of pages, since a reply
// names a slot by one offset.
//
// Invariant: the pages of a slot are freed once the client has released the slot and no operation
// uses it.
//
// Invariant: a slot has either one writer or any number of readers, with one exception: a request
// that reads a slot may also write it, if there is no other reader.
type Slots struct {
	region gpuipc.Region
	within gpuipc.Extent // slot memory within the region
	most   int           // largest number of slots

	mu struct {
		sync.Mutex
		pages  *gpuipc.PageAllocator
		leases map[uint64]*Slot
	}
}

// Slot holds one result of compose, rotate or assemble.
type Slot struct {
	Lease  uint64
	Extent gpuipc.Extent // whole pages
	fresh  bool          // created by the operation that uses the slot now

	// Guarded by slots.mu.
	readers  int
	writer   bool
	failed   bool // the last write failed, so that the content is undefined
	released bool
}

// New creates slots in an extent of a region. The parameter most is the largest number of slots.
func New(region gpuipc.Region, within gpuipc.Extent, pageBytes, most int) *Slots {
	s := &Slots{region: region, within: within, most: most}
	s.mu.pages = gpuipc.NewPageAllocator(within.Len, pageBytes)
	s.mu.leases = map[uint64]*Slot{}
	return s
}

// Open returns the slot that an operation writes. The parameter into is the id of an existing slot;
// 0 = a new slot with an id from newID. The parameter own is the slot that the same operation
// reads; nil = none.
func (s *Slots) Open(into uint64, bytes int64, own *Slot, newID func() uint64) (*Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if into != 0 {
		x := s.mu.leases[into]
		switch {
		case x == nil:
			return nil, codes.Refuse(wire.Gone, "slot %d", into)
		case x.Extent.Len < bytes:
			return nil, codes.Refuse(wire.Invalid, "slot %d has %d bytes, the result %d", into, x.Extent.Len, bytes)
		case x.writer:
			return nil, codes.Refuse(wire.Busy, "slot %d is being written", into)
		case x.readers > 1 || x.readers == 1 && x != own:
			return nil, codes.Refuse(wire.Busy, "slot %d is being read", into)
		}
		x.writer, x.fresh = true, false
		return x, nil
	}
	if len(s.mu.leases) >= s.most {
		return nil, codes.Refuse(wire.Busy, "%d slots, the maximum of a connection", s.most)
	}
	extent, err := s.mu.pages.AllocRun(max(bytes, 1))
	if err != nil {
		return nil, fmt.Errorf("slot: %w", err)
	}
	extent.Off += s.within.Off
	x := &Slot{Lease: newID(), Extent: extent, fresh: true, writer: true}
	s.mu.leases[x.Lease] = x
	return x, nil
}

// Done ends the use that Open has begun. If the operation failed, a new slot is released, since the
// client never learns of it. An older slot stays, but cannot be read until another operation has
// written it completely: composing a partial result again would count tokens twice.
func (s *Slots) Done(x *Slot, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.writer, x.failed = false, err != nil
	if err != nil && x.fresh && !x.released {
		x.released = true
		delete(s.mu.leases, x.Lease)
	}
	s.freeLocked(x)
}

// Read returns the slot of a lease, which must contain [off, off+bytes) of the region. The slot's
// pages stay until DoneReading.
func (s *Slots) Read(lease uint64, off uint64, bytes int64) (*Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.mu.leases[lease]
	if x == nil {
		return nil, codes.Refuse(wire.Gone, "slot %d", lease)
	}
	switch {
	case x.writer:
		return nil, codes.Refuse(wire.Busy, "slot %d is being written", lease)
	case x.failed:
		return nil, codes.Refuse(wire.Gone, "slot %d: the last request that wrote it failed", lease)
	}
	if start := uint64(x.Extent.Off); off < start || off-start > uint64(x.Extent.Len) || int64(off-start)+bytes > x.Extent.Len {
		return nil, codes.Refuse(wire.Invalid, "states [%d, +%d) are not inside slot %d [%d, +%d)", off, bytes, lease, start, x.Extent.Len)
	}
	x.readers++
	return x, nil
}

// DoneReading ends the use that Read has begun.
func (s *Slots) DoneReading(x *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.readers--
	s.freeLocked(x)
}

// Release ends a lease. It returns false if the lease does not belong to a slot here.
func (s *Slots) Release(lease uint64) bool {
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

func (s *Slots) freeLocked(x *Slot) {
	if x.released && !x.writer && x.readers == 0 {
		s.mu.pages.Free([]gpuipc.Extent{{Off: x.Extent.Off - s.within.Off, Len: x.Extent.Len}})
	}
}

// Has reports whether lease belongs to a slot here.
func (s *Slots) Has(lease uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return lease != 0 && s.mu.leases[lease] != nil
}

// Ref returns a reference to the first bytes of a slot, as many as given.
func (s *Slots) Ref(x *Slot, bytes int64) gpuipc.Ref {
	return gpuipc.Ref{Region: s.region, Extents: []gpuipc.Extent{{Off: x.Extent.Off, Len: bytes}}}
}

// Held returns the number of leased slots, and the bytes in use.
func (s *Slots) Held() (leases int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.leases), s.mu.pages.UsedBytes()
}

// ReadFront is like Read for the first bytes of a slot. If the lease is not a slot, it returns nil
// without an error.
func (s *Slots) ReadFront(lease uint64, bytes int64) (*Slot, error) {
	s.mu.Lock()
	x := s.mu.leases[lease]
	s.mu.Unlock()
	if x == nil {
		return nil, nil
	}
	return s.Read(lease, uint64(x.Extent.Off), bytes)
}

// Region returns the region that contains the slots.
func (s *Slots) Region() gpuipc.Region { return s.region }

// End returns the offset at which the slot memory ends in the region.
func (s *Slots) End() int64 { return s.within.Off + s.within.Len }
