package disk

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// prover reads the entries that a killed process wrote in its last seconds, and drops those
// that are damaged.
type prover struct{ *core }

// proveLoop reads the suspects, until the mount stops. These are the entries that a killed
// process wrote in its last seconds. Dormant entries are read once their profiles become
// known.
func (t *prover) proveLoop(ctx context.Context, m *mount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !m.stopping {
		if m.unproven = false; len(t.suspects) > 0 {
			t.mu.Unlock()
			t.proveAll(ctx, m)
			t.mu.Lock()
		}
		for !m.unproven && !m.stopping {
			t.idle.Wait()
		}
	}
}

// proveAll reads the suspects one by one.
func (t *prover) proveAll(ctx context.Context, m *mount) {
	t.mu.Lock()
	list := t.suspects
	t.mu.Unlock()
	for _, e := range list {
		t.mu.Lock()
		stop := m.stopping || ctx.Err() != nil
		wanted := !stop && e.phase == suspect
		if wanted {
			t.holdLocked(e)
		}
		t.skipSuspectsLocked()
		t.mu.Unlock()
		if stop {
			return
		}
		if wanted {
			t.prove(ctx, m, e)
		}
	}
	var left []*entry
	t.mu.Each(len(list), rowsAtOnce, func(i int) {
		if list[i].unproven() {
			left = append(left, list[i])
		}
	})
	t.mu.Lock()
	t.suspects = left
	t.mu.Unlock()
	t.wantSync() // of the entries that are no longer suspect
}

// unproven reports whether the entry's bytes have to be read before they can count as
// synced.
func (e *entry) unproven() bool { return e.phase == suspect || e.phase == dormant }

// doubted reports whether the entry's row says that its bytes may be unsynced. In that case
// the synced generation does not matter.
func (e *entry) doubted() bool { return e.Level == uint8(tier.LevelMemory) }

// skipSuspectsLocked removes entries from the front of the list that are no longer
// suspect.
func (t *core) skipSuspectsLocked() {
	for range rowsAtOnce {
		if len(t.suspects) == 0 || t.suspects[0].unproven() {
			return
		}
		t.suspects = t.suspects[1:]
	}
}

// prove reads and verifies one held entry, and releases it. If the bytes are right, the
// entry is trusted; if they are wrong, it is forgotten. If they cannot be read now, it
// stays suspect.
func (t *prover) prove(ctx context.Context, m *mount, e *entry) {
	x, err := payload.ReadExtent(m, e.Runs)
	if err == nil {
		if err = x.Agrees(&e.Row, e.owner.Name); err != nil {
			err = payload.Corrupt(err)
		}
	}
	if err == nil {
		err = x.Verify(ctx, m, e.model.Profile, m.Key, 1)
	}
	t.mu.Lock()
	corrupt := errors.Is(err, tier.ErrCorrupt) && !m.strangeLocked(err) && e.phase.live()
	switch {
	case err == nil:
		e.proven = true
		t.trustLocked(e)
	case corrupt:
		t.counters.Corrupt++
	}
	t.mu.Unlock()
	if corrupt {
		t.forgetTree(e)
	}
	t.letGo(m, e)
}

// trustLocked makes a suspect entry logged, after its bytes were read and verified. The
// next sync makes it synced.
func (t *core) trustLocked(e *entry) {
	if e.phase == suspect {
		t.become(e, logged)
	}
}
