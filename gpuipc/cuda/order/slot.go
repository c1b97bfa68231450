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

// The slots, by who writes them.
const (
	Client Slot = 0
	Daemon Slot = 1
)

// SlotBytes lie between the beginnings of two slots, PageBytes is the page.
// Slots are aligned to SlotBytes.
const (
	SlotBytes = 64
	PageBytes = 2 * SlotBytes
)

// MostWaiting is how many streams of a process may wait at once, and no more than half of its connections
// to the GPU (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless it is set). Where every connection has a stream that
// waits, nobody else gets in, not even a stream of the highest priority with the write that ends the waits:
// on an H200 one got past 7 and not past 8, with one connection not past 4.
const MostWaiting = 4

// Released passes every wait. Numbers are less.
const Released uint64 = 1<<63 - 1

// Reached compares as the driver does.
func Reached(have, want uint64) bool { return int64(have-want) >= 0 }

func (s Slot) check() error {
	if s != Client && s != Daemon {
		return fmt.Errorf("order: slot %d of 2: %w", s, gpuipc.ErrInvalid)
	}
	return nil
}

// number refuses what is no sequence number.
func number(v uint64) error {
	if v == 0 || v >= Released {
		return fmt.Errorf("order: number %d, must be in [1, 1<<63-1): %w", v, gpuipc.ErrInvalid)
	}
	return nil
}

// memory is where a page lies.
type memory interface {
	load(ctx context.Context, off int64, word []byte) error
	store(ctx context.Context, off int64, word []byte) error
}

// inRegion reaches a page through the device that has mapped it.
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

// read gives the number of a slot.
//
// That a copy of eight aligned bytes is never torn is how devices behave, not
// what CUDA promises. A torn number is too large only where its upper half
// changed meanwhile, so one with an upper half counts when two reads agree.
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

// Host waits look again after pollFirst, then at intervals that grow by half up
// to pollMost: short against a step of an engine, long against a read of the
// slot, which costs the device a copy of 8 bytes. Guessed, not measured.
const (
	pollFirst = 20 * time.Microsecond
	pollMost  = time.Millisecond
)

// poll calls done until it says yes or fails, or ctx ends.
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
