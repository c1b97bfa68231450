package order

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Page is a host's view of a page. Reads and waits may run concurrently with everything
// else. Only one goroutine at a time may signal a slot. Release may be called at any time.
type Page struct {
	memory memory
	slots  [2]slotState
}

// slotState has the last write of this process to a slot.
type slotState struct {
	last     atomic.Uint64
	released atomic.Bool
}

// In returns the page at offset off of region r, which d made or imported. The caller owns
// the page and the region. It closes the region only after its last call of a method of the
// page.
func In(d gpuipc.Device, r gpuipc.Region, off int64) (*Page, error) {
	if off < 0 || off%SlotBytes != 0 || off > r.Bytes()-PageBytes {
		return nil, fmt.Errorf("order: page at %d of a region of %d bytes: %w", off, r.Bytes(), gpuipc.ErrInvalid)
	}
	return &Page{memory: &inRegion{device: d, region: r, off: off}}, nil
}

// Clear sets both slots to 0. The owner of the page calls it before a peer maps the page,
// because the memory still has old contents.
func (p *Page) Clear(ctx context.Context) error {
	return errors.Join(write(ctx, p.memory, Client, 0), write(ctx, p.memory, Daemon, 0))
}

// Read returns a slot's number: 0 before the first number, and Released at the end.
func (p *Page) Read(ctx context.Context, s Slot) (uint64, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	return read(ctx, p.memory, s)
}

// Wait waits on the host until the slot has reached v. It returns the number that it found,
// which is Released if the peer is gone. If ctx ends first, Wait returns the error of ctx.
// It blocks no stream.
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

// Signal writes v from the host. v must be larger than the previous number, and the caller
// must have waited for all work before v. After Release, Signal does nothing.
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
	// Since the check above, a concurrent Release may have written Released, and this write
	// may have replaced it by v. Then waits for numbers above v would not end.
	if own.released.Load() {
		return errors.Join(err, write(ctx, p.memory, s, Released))
	}
	return err
}

// Release ends all waits for the slot, now and later. These are waits of a peer for this
// process, or of our own streams for a dead peer.
func (p *Page) Release(ctx context.Context, s Slot) error {
	if err := s.check(); err != nil {
		return err
	}
	p.slots[s].released.Store(true)
	return write(ctx, p.memory, s, Released)
}
