package order

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Slot is one of the two slots of a page.
type Slot int

// The slots, by the side that writes them.
const (
	Client Slot = 0
	Daemon Slot = 1
)

// SlotBytes is the distance of the two slots, and PageBytes is the size of a page. Slots
// are aligned to SlotBytes.
const (
	SlotBytes = 64
	PageBytes = 2 * SlotBytes
)

// MostWaiting is the largest number of streams of a process that may wait at once. It is at
// most half of the process's connections to the GPU (CUDA_DEVICE_MAX_CONNECTIONS, 8 by
// default). If every connection has a waiting stream, no other stream runs, not even one of
// the highest priority that would end the waits. On an H200 such a stream still ran with 7
// waiting streams, but not with 8. With only one connection it did not run with 4 waiting
// streams.
const MostWaiting = 4

// Released ends every wait. All sequence numbers are smaller.
const Released uint64 = 1<<63 - 1

// Reached reports whether a slot with the number have has reached the number want. It
// compares as the driver does.
func Reached(have, want uint64) bool { return int64(have-want) >= 0 }

func (s Slot) check() error {
	if s != Client && s != Daemon {
		return fmt.Errorf("order: slot %d of 2: %w", s, gpuipc.ErrInvalid)
	}
	return nil
}

// number returns ErrInvalid for an invalid sequence number.
func number(v uint64) error {
	if v == 0 || v >= Released {
		return fmt.Errorf("order: number %d, must be in [1, 1<<63-1): %w", v, gpuipc.ErrInvalid)
	}
	return nil
}

// memory reads and writes the memory of a page, at offset off of the page.
type memory interface {
	load(ctx context.Context, off int64, word []byte) error
	store(ctx context.Context, off int64, word []byte) error
}

// inRegion accesses a page through the device that has mapped it.
type inRegion struct {
	device gpuipc.Device
	region gpuipc.Region
	off    int64
}

func (m *inRegion) ref(off int64, n int) gpuipc.Ref {
	return gpuipc.Ref{
		Region:  m.region,
		Extents: []gpuipc.Extent{{Off: m.off + off, Len: int64(n)}},
	}
}

func (m *inRegion) load(ctx context.Context, off int64, word []byte) error {
	return m.device.Load(ctx, word, m.ref(off, len(word)))
}

func (m *inRegion) store(ctx context.Context, off int64, word []byte) error {
	return m.device.Store(ctx, m.ref(off, len(word)), word)
}

// read returns the number of a slot.
//
// Devices do not tear a copy of eight aligned bytes, though CUDA does not promise that. A
// torn number can only be too large if its upper half changed during the copy. So a number
// whose upper half is not zero counts only if two reads agree.
func read(ctx context.Context, m memory, s Slot) (uint64, error) {
	var last uint64
	for range 4 {
		var word [8]byte
		if err := m.load(ctx, int64(s)*SlotBytes, word[:]); err != nil {
			return 0, err
		}
		v := binary.NativeEndian.Uint64(word[:])
		if v>>32 == 0 || v == last {
			return v, nil
		}
		last = v
	}
	return 0, errBusySlot
}

var errBusySlot = errors.New("order: slot changes faster than it can be read")

func write(ctx context.Context, m memory, s Slot, v uint64) error {
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], v)
	return m.store(ctx, int64(s)*SlotBytes, word[:])
}

// A host that waits polls the slot for the first time after pollFirst. Then the intervals
// grow by half up to pollMost. These times are short compared with a step of an engine.
// They are long compared with a read of the slot, for which the device copies 8 bytes.
// Guessed, not measured.
const (
	pollFirst = 20 * time.Microsecond
	pollMost  = time.Millisecond
)

// poll calls the function done until it returns true or an error, or until ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for pause := pollFirst; ; pause = min(pause*3/2, pollMost) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
}
