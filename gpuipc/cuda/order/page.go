package order

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Page is a host's view of a page. Reads and waits may run concurrently with
// everything else; one goroutine at a time signals a slot, and Release may be
// called at any time.
type Page struct {
	memory memory
	slots  [2]slotState
}

// slotState is the last write of this process to a slot.
type slotState struct {
	last     atomic.Uint64
	released atomic.Bool
}

// In returns the page at off of r, which d made or imported. The page and its
// region are the caller's; the region is closed after the last call here.
func In(d gpuipc.Device, r gpuipc.Region, off int64) (*Page, error) {
	if off < 0 || off%SlotBytes != 0 || off > r.Bytes()-PageBytes {
		return nil, fmt.Errorf("order: page at %d of a region of %d bytes: %w", off, r.Bytes(), gpuipc.ErrInvalid)
	}
	return &Page{memory: &inRegion{device: d, region: r, off: off}}, nil
}

// Clear sets both slots to 0. The page's owner calls it before a peer maps the
// page: device memory has its old contents.
func (p *Page) Clear(ctx context.Context) error {
	return errors.Join(write(ctx, p.memory, Client, 0), write(ctx, p.memory, Daemon, 0))
}

// Read returns a slot's number: 0 before the first, Released at the end.
func (p *Page) Read(ctx context.Context, s Slot) (uint64, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	return read(ctx, p.memory, s)
}

// Wait waits on the host until the slot has reached v and returns the number it
// found, which is Released if the peer is gone. If ctx ends first it returns
// its error; no stream has waited.
func (p *Page) Wait(ctx context.Context, s Slot, v uint64) (seen uint64, err error) {
	if err := errors.Join(s.check(), number(v)); err != nil {
		return 0, err
	}
	err = poll(ctx, func() (bool, error) {
		seen, err = read(ctx, p.memory, s)
		if errors.Is(err, errBusySlot) {
			return false, nil
		}
		return Reached(seen, v), err
	})
	if err != nil {
		return 0, fmt.Errorf("order: slot %d to reach %d: %w", s, v, err)
	}
	return seen, nil
}

// Signal writes v, larger than the number before, from the host. The caller has
// waited for all work before v. After Release it does nothing.
func (p *Page) Signal(ctx context.Context, s Slot, v uint64) error {
	if err := errors.Join(s.check(), number(v)); err != nil {
		return err
	}
	own := &p.slots[s]
	if last := own.last.Load(); v <= last {
		return fmt.Errorf("order: number %d after %d: %w", v, last, gpuipc.ErrInvalid)
	}
	if own.released.Load() {
		return nil
	}
	err := write(ctx, p.memory, s, v)
	if err == nil {
		own.last.Store(v)
	}
	// A Release since the check above may have written before us, and waiters
	// for larger numbers would stay.
	if own.released.Load() {
		return errors.Join(err, write(ctx, p.memory, s, Released))
	}
	return err
}

// Release lets every waiter of the slot continue, now and later: a peer that
// waits for this process, or our own streams that wait for a dead peer.
func (p *Page) Release(ctx context.Context, s Slot) error {
	if err := s.check(); err != nil {
		return err
	}
	p.slots[s].released.Store(true)
	return write(ctx, p.memory, s, Released)
}
