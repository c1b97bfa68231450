package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// reader reads entries.
type reader struct{ *core }

// Read implements tier.Tier. It runs in the caller's goroutine and up to Config.Workers
// others. If the disk fails, it tries once more.
func (t *reader) Read(ctx context.Context, want *tier.Entry, dst []gpuipc.Ref) (*tier.Content, error) {
	began := t.cfg.Now()
	e, m, key, err := t.beginRead(want, dst, began)
	if err != nil {
		return nil, err
	}
	what := payload.Reading{From: m, Row: &e.Row, Profile: e.model.Profile, Key: key, Device: t.cfg.Device, To: dst, Workers: t.cfg.Workers}
	manifest, err := payload.Read(ctx, what)
	if errors.Is(err, payload.ErrUnread) && ctx.Err() == nil {
		t.mu.Lock()
		t.counters.ReadRetries++
		t.mu.Unlock()
		manifest, err = payload.Read(ctx, what)
	}
	t.endRead(m, e, err, began)
	if err != nil {
		return nil, fmt.Errorf("disk: read %x: %w", want.Key[:8], err)
	}
	return &tier.Content{Publisher: manifest.Publisher, Tokens: manifest.Tokens, Digests: manifest.Digests}, nil
}

// beginRead finds an entry and holds it, so that its space is not reused. If it returns a
// key, the read has to verify the entry's seal with it. That is done once per entry after
// opening: other users cannot access the directory, and a process that can change its
// files can also read the key.
func (t *reader) beginRead(want *tier.Entry, dst []gpuipc.Ref, now time.Time) (*entry, *mount, *extent.Key, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := &t.health.breaker; b.open(now) {
		t.counters.ReadsRefused++
		return nil, nil, nil, fmt.Errorf("disk: read %x: %d reads in a row have failed: %w", want.Key[:8], b.failures, tier.ErrUnavailable)
	}
	if t.readsOffLocked() {
		t.counters.ReadsRefused++
		return nil, nil, nil, fmt.Errorf("disk: read %x: another has not returned: %w", want.Key[:8], tier.ErrUnavailable)
	}
	e := t.findLocked(&want.Name)
	if e == nil || e.Generation != want.Generation {
		return nil, nil, nil, fmt.Errorf("disk: read %x, generation %d: %w", want.Key[:8], want.Generation, tier.ErrGone)
	}
	if err := checkDestination(e, dst); err != nil {
		return nil, nil, nil, err
	}
	t.holdLocked(e)
	key := t.mount.Key
	if e.proven {
		key = nil
	}
	return e, t.mount, key, nil
}

// holdLocked keeps an entry's space and the mount from being released during a read.
func (t *core) holdLocked(e *entry) {
	e.readers++
	if e.readers == 1 {
		t.pin(e, 1)
	}
	t.reading++
}

// letGo undoes holdLocked. If the entry was removed meanwhile and no other reads are
// left, it frees the space.
func (t *core) letGo(m *mount, e *entry) {
	t.mu.Lock()
	e.readers--
	if e.readers == 0 && e.phase.live() {
		t.pin(e, -1)
	}
	t.endUseLocked()
	free := e.phase == released && e.readers == 0
	if free {
		t.become(e, gone)
	}
	t.mu.Unlock()
	if free {
		t.releaseSpace(m, e)
	}
}

// endUseLocked ends one use of the mount.
func (t *core) endUseLocked() {
	if t.reading--; t.reading == 0 {
		t.idle.Broadcast()
	}
}

func checkDestination(e *entry, dst []gpuipc.Ref) error {
	if len(dst) != e.Ranks {
		return fmt.Errorf("disk: read %x of %d ranks to %d: %w", e.Key[:8], e.Ranks, len(dst), tier.ErrInvalid)
	}
	for i := range dst {
		if n := dst[i].Len(); n != e.RankBytes {
			return fmt.Errorf("disk: read %x of %d bytes a rank to %d: %w", e.Key[:8], e.RankBytes, n, tier.ErrInvalid)
		}
	}
	return nil
}

// endRead counts the result of a read, forgets the entry if it was corrupt or unreadable,
// and releases it.
func (t *reader) endRead(m *mount, e *entry, err error, began time.Time) {
	now := t.cfg.Now()
	b := &t.health.breaker
	t.mu.Lock()
	strange := m.strangeLocked(err)
	switch {
	case strange:
	case err == nil:
		t.counters.Read++
		t.counters.ReadBytes += uint64(e.RankBytes) * uint64(e.Ranks)
		took := max(now.Sub(began), 0)
		t.counters.ReadNanos += uint64(took)
		t.reads.Observe(took.Seconds())
		b.succeeded()
		e.proven = true
		t.trustLocked(e)
		if e.phase.live() {
			t.touch(e, now)
		}
	case errors.Is(err, tier.ErrCorrupt):
		t.counters.Corrupt++
	case errors.Is(err, payload.ErrUnread):
		t.counters.ReadErrors++
		b.failed(now)
		if b.open(now) {
			t.counters.BreakerOpenings++
		}
	}
	t.mu.Unlock()
	lost := !strange && (errors.Is(err, tier.ErrCorrupt) || errors.Is(err, payload.ErrUnread))
	if lost {
		t.forgetTree(e)
	}
	t.letGo(m, e)
	if lost {
		t.log.Warn().Str("tier", "disk").Hex("segment", e.Key[:8]).Err(err).Msg("an entry is lost")
	}
}
