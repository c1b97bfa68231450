package connector

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// held is the common part of leases of segments, checkpoints and slots: an id that the daemon
// knows, and a reference that keeps the memory mapped until release.
type held struct {
	a        *link.Attachment
	tenant   uint32
	id       uint64
	until    time.Time // end of the lease, if a TTL was requested
	released atomic.Bool
}

// lease returns the id for use in a request on attachment a. It returns ErrGone after release,
// or if the lease belongs to another attachment.
func (h *held) lease(a *link.Attachment) (uint64, error) {
	switch {
	case h.released.Load():
		return 0, fmt.Errorf("lease %d is released: %w", h.id, ErrGone)
	case h.a != a:
		return 0, fmt.Errorf("lease %d belongs to a previous daemon: %w", h.id, ErrGone)
	}
	return h.id, nil
}

// keep keeps the memory mapped for the duration of a call. Afterwards the caller releases the
// attachment. keep returns ErrGone if the lease is no longer valid.
func (h *held) keep() error {
	if h.released.Load() || !h.a.Retain() {
		return fmt.Errorf("lease %d is released: %w", h.id, ErrGone)
	}
	// Release may have run between the two checks above.
	if h.released.Load() {
		h.a.Release()
		return fmt.Errorf("lease %d is released: %w", h.id, ErrGone)
	}
	if err := h.changed(); err != nil {
		h.a.Release()
		return err
	}
	return nil
}

// changed returns ErrGone if the memory may have been reused. If it returns nil after a copy,
// the copy has the leased bytes.
func (h *held) changed() error {
	if !h.until.IsZero() && !time.Now().Before(h.until) {
		return fmt.Errorf("lease %d has expired: %w", h.id, ErrGone)
	}
	if h.a.Intact() {
		return nil
	}
	return fmt.Errorf("lease %d: its connection has ended: %w", h.id, ErrGone)
}

func (h *held) valid() bool {
	if h.keep() != nil {
		return false
	}
	h.a.Release()
	return true
}

func (h *held) release() {
	if h.released.Swap(true) {
		return
	}
	h.a.GiveBack(wire.OpRelease, h.tenant, []uint64{h.id})
	h.a.Release()
}

// releasable is a *Lease, *DeviceLease, *Checkpoint, *Buffer or *Slot.
type releasable interface {
	comparable
	base() *held
}

func (h *held) base() *held { return h }

// Release releases one or more leases, in as few requests as possible. It ignores nil leases.
func Release[T releasable](leases ...T) {
	var first *held // first lease of the batch ids
	var ids []uint64
	flush := func() {
		if len(ids) > 0 {
			first.a.GiveBack(wire.OpRelease, first.tenant, ids)
		}
		for range ids {
			first.a.Release()
		}
		ids = nil // the previous batch may still be waiting to be sent
	}
	var none T
	for _, l := range leases {
		if l == none {
			continue
		}
		h := l.base()
		if h.released.Swap(true) {
			continue
		}
		if len(ids) > 0 && (h.a != first.a || h.tenant != first.tenant || len(ids) == wire.MaxIDs) {
			flush()
		}
		first, ids = h, append(ids, h.id)
	}
	flush()
}

// extents are the runs of a region that make up one linear object.
type extents []gpuipc.Extent

// absent is the offset of an extent that is not in memory. The daemon may have dropped the
// states of a checkpoint that another checkpoint extends.
const absent = -1

// newExtents converts the extents of an object of n bytes. It checks that they lie in a region
// of the given size, or are absent if holes is set, and cuts off bytes beyond n.
func newExtents(off, length []uint64, n uint64, region int, holes bool) (extents, error) {
	list := make(extents, 0, len(off))
	left := n
	for i := range off {
		if off[i] == wire.None && holes && length[i] > 0 && length[i] <= left {
			list = append(list, gpuipc.Extent{Off: absent, Len: int64(length[i])})
			left -= length[i]
			continue
		}
		if length[i] == 0 || length[i] > uint64(region) || off[i] > uint64(region)-length[i] {
			return nil, fmt.Errorf("extent of %d bytes at %d of a region of %d", length[i], off[i], region)
		}
		if left == 0 {
			break
		}
		run := min(length[i], left)
		list = append(list, gpuipc.Extent{Off: int64(off[i]), Len: int64(run)})
		left -= run
	}
	if left != 0 {
		return nil, fmt.Errorf("extents are %d bytes short of %d", left, n)
	}
	return list, nil
}

// held reports whether bytes [off, off+n) of the object are in memory.
func (e extents) held(off, n int64) bool {
	for _, run := range e {
		if run.Off == absent && off < run.Len && off+n > 0 {
			return false
		}
		off -= run.Len
	}
	return true
}

// view returns bytes [off, off+n) of the object if they lie in one run.
func (e extents) view(mem []byte, off, n int64) ([]byte, bool) {
	for _, run := range e {
		if off < run.Len {
			if n > run.Len-off {
				return nil, false
			}
			return mem[run.Off+off : run.Off+off+n : run.Off+off+n], true
		}
		off -= run.Len
	}
	return nil, n == 0
}

// copyOut copies bytes starting at off into dst.
func (e extents) copyOut(dst, mem []byte, off int64) {
	for _, run := range e {
		if len(dst) == 0 {
			return
		}
		if off >= run.Len {
			off -= run.Len
			continue
		}
		n := copy(dst, mem[run.Off+off:run.Off+run.Len])
		dst, off = dst[n:], 0
	}
}
