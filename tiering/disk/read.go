package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Read implements tiering.Tier. It works in the caller's goroutine and as many
// more as there are workers.
func (t *Tier) Read(ctx context.Context, want *tier.Entry, dst []gpuipc.Ref) (*tier.Content, error) {
	began := t.cfg.Now()
	e, v, err := t.beginRead(want, dst, began)
	if err != nil {
		return nil, err
	}
	content, err := v.readEntry(ctx, t, e, dst)
	if retriable(ctx, err) {
		t.mu.Lock()
		t.counters.ReadRetries++
		t.mu.Unlock()
		content, err = v.readEntry(ctx, t, e, dst)
	}
	t.endRead(v, e, err, began)
	if err != nil {
		return nil, fmt.Errorf("disk: read %x: %w", want.Key[:8], err)
	}
	return content, nil
}

// retriable says whether the disk failed, rather than the bytes or the caller.
func retriable(ctx context.Context, err error) bool {
	return errors.Is(err, errDisk) && ctx.Err() == nil
}

// errDisk is an error of the disk in reading.
var errDisk = fmt.Errorf("disk: cannot be read: %w", tier.ErrUnavailable)

// beginRead holds an entry, so that its space is not given to another.
func (t *Tier) beginRead(want *tier.Entry, dst []gpuipc.Ref, now time.Time) (*entry, *volume, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.breaker.open(now) {
		t.counters.ReadsRefused++
		return nil, nil, fmt.Errorf("disk: read %x: %d reads in a row have failed: %w", want.Key[:8], t.breaker.failures, tier.ErrUnavailable)
	}
	if t.readsOffLocked() {
		t.counters.ReadsRefused++
		return nil, nil, fmt.Errorf("disk: read %x: another has not returned: %w", want.Key[:8], tier.ErrUnavailable)
	}
	e := t.findLocked(&want.Name)
	if e == nil || e.generation != want.Generation {
		return nil, nil, fmt.Errorf("disk: read %x, generation %d: %w", want.Key[:8], want.Generation, tier.ErrGone)
	}
	if err := checkDestination(e, dst); err != nil {
		return nil, nil, err
	}
	t.holdLocked(e)
	return e, t.vol, nil
}

// holdLocked keeps an entry's space, and the volume, for a read.
func (t *Tier) holdLocked(e *entry) {
	e.readers++
	if e.readers == 1 {
		t.pin(e, 1)
	}
	t.reading++
}

// letGoLocked ends what holdLocked began. Its answer says that the space is now
// the caller's to free.
func (t *Tier) letGoLocked(e *entry) (free bool) {
	e.readers--
	if e.readers == 0 && e.phase == live {
		t.pin(e, -1)
	}
	t.reading--
	if t.reading == 0 {
		t.idle.Broadcast()
	}
	return e.rowDeleted && e.readers == 0
}

func checkDestination(e *entry, dst []gpuipc.Ref) error {
	if len(dst) != e.ranks {
		return fmt.Errorf("disk: read %x of %d ranks to %d: %w", e.Key[:8], e.ranks, len(dst), tier.ErrInvalid)
	}
	for i := range dst {
		if n := dst[i].Len(); n != e.rankBytes {
			return fmt.Errorf("disk: read %x of %d bytes a rank to %d: %w", e.Key[:8], e.rankBytes, n, tier.ErrInvalid)
		}
	}
	return nil
}

// endRead lets an entry go and draws what follows from how it went.
func (t *Tier) endRead(v *volume, e *entry, err error, began time.Time) {
	now := t.cfg.Now()
	t.mu.Lock()
	switch {
	case err == nil:
		t.counters.Read++
		t.counters.ReadBytes += uint64(e.rankBytes) * uint64(e.ranks)
		t.counters.ReadNanos += uint64(max(now.Sub(began), 0))
		t.breaker.succeeded()
		if e.phase == live {
			t.trustLocked(e)
			t.touch(e, now)
		}
	case errors.Is(err, tier.ErrCorrupt):
		t.counters.Corrupt++
		t.loseLocked(e)
	case errors.Is(err, errDisk):
		t.counters.ReadErrors++
		t.breaker.failed(now)
		if t.breaker.open(now) {
			t.counters.BreakerOpenings++
		}
		t.loseLocked(e)
	}
	free := t.letGoLocked(e)
	t.mu.Unlock()
	if free {
		t.releaseSpace(v, e, e.runs)
	}
	if errors.Is(err, tier.ErrCorrupt) || errors.Is(err, errDisk) {
		t.log.Warn().Str("tier", "disk").Hex("segment", e.Key[:8]).Err(err).Msg("an entry is lost")
	}
}

// loseLocked forgets an entry that turned out bad; others may have done so already.
func (t *Tier) loseLocked(e *entry) {
	if e.phase == live {
		t.forgetLocked(e)
	}
}
