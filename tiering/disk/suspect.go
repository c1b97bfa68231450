package disk

import (
	"context"
	"errors"
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// proveLoop reads what was taken up unread and is not known to have been synced:
// after a process was killed, what it wrote in its last seconds. It goes one by
// one, and ends when nothing is left or the volume stops.
func (t *Tier) proveLoop(ctx context.Context, v *volume) {
	t.mu.Lock()
	list := t.suspect
	t.mu.Unlock()
	if len(list) == 0 {
		return
	}
	for _, e := range list {
		t.mu.Lock()
		stop := v.stopping || ctx.Err() != nil
		wanted := !stop && e.phase == live && e.suspect
		if wanted {
			t.holdLocked(e)
		}
		t.mu.Unlock()
		if stop {
			return
		}
		if wanted {
			t.prove(ctx, v, e)
		}
	}
	t.mu.Lock()
	t.suspect = slices.DeleteFunc(t.suspect, func(e *entry) bool { return !e.suspect || e.phase != live })
	t.mu.Unlock()
	t.wantSync() // moves the mark on
}

// prove reads one entry, which is held, and draws the conclusion. One that cannot
// be read now stays suspect.
func (t *Tier) prove(ctx context.Context, v *volume, e *entry) {
	f, err := v.readHeader(e.runs)
	if err == nil {
		if err = f.agrees(e.row(), e.owner.Name); err != nil {
			err = corrupt(err)
		}
	}
	if err == nil {
		err = v.verify(ctx, f, e.model.Profile, 1)
	}
	t.mu.Lock()
	switch {
	case e.phase != live:
	case err == nil:
		t.trustLocked(e)
	case errors.Is(err, tier.ErrCorrupt):
		t.counters.Corrupt++
		t.loseLocked(e)
	}
	free := t.letGoLocked(e)
	t.mu.Unlock()
	if free {
		t.releaseSpace(v, e, e.runs)
	}
}

// trustLocked ends a suspicion: the bytes were there. The next sync counts.
func (t *Tier) trustLocked(e *entry) {
	if e.suspect {
		e.suspect = false
		t.logged = append(t.logged, e)
	}
}
