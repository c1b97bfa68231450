package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Close closes the tier. Nothing more is admitted, and started writes have up to
// Config.DrainTime to finish. Then Run returns, last uses and counters are saved, and
// everything is synced. An error concerns the directory; the tier is closed nevertheless.
// Work that waits for a disk that does not respond is abandoned after another DrainTime
// for each of these steps.
func (t *Tier) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return fmt.Errorf("disk: closed twice: %w", tier.ErrInvalid)
	}
	t.closed = true
	t.advanceLocked(draining)
	t.waitLocked(func() bool { return t.queue.started == 0 || !t.running || !t.health.state.writable() })
	t.advanceLocked(ending)
	quiet := t.waitLocked(func() bool { return !t.running && t.reading == 0 })
	m := t.mount
	t.mu.Unlock()
	if !quiet {
		return t.hangs()
	}
	if m == nil {
		return t.finish(nil)
	}
	done := make(chan error, 1)
	go func() { done <- t.closeMount(m) }()
	late := time.NewTimer(t.cfg.DrainTime)
	defer late.Stop()
	select {
	case err := <-done:
		return t.finish(err)
	case <-late.C:
		return t.hangs()
	}
}

// hangs returns the error for a disk that does not respond.
func (t *Tier) hangs() error {
	return fmt.Errorf("disk: not closed, it has not answered for %v: %w", t.cfg.DrainTime, tier.ErrUnavailable)
}

// finish ends all entries and callbacks.
func (t *Tier) finish(err error) error {
	t.forgetAll()
	t.mu.Lock()
	t.mount = nil
	t.enterLocked(StateClosed, nil, t.cfg.Now())
	quiet := t.waitLocked(func() bool { return t.answers == 0 })
	t.mu.Unlock()
	if !quiet {
		err = errors.Join(err, fmt.Errorf("disk: closed, but who was called back has not returned for %v: %w", t.cfg.DrainTime, tier.ErrUnavailable))
	}
	return err
}

// waitLocked waits up to DrainTime for a condition, and reports whether it holds.
func (t *Tier) waitLocked(done func() bool) bool {
	late := false
	timer := time.AfterFunc(t.cfg.DrainTime, func() {
		t.mu.Lock()
		late = true
		t.idle.Broadcast()
		t.mu.Unlock()
	})
	defer timer.Stop()
	for !done() && !late {
		t.idle.Wait()
	}
	return done()
}

// closeMount does the last work on a mount after Run has returned: pending changes of
// rows, last uses, counters, a sync, and closing the directory.
func (t *Tier) closeMount(m *mount) error {
	t.stop(m)
	t.commitLoop(m)
	t.saveUses(m)
	err := t.saveCounters(m)
	t.mu.Lock()
	syncable := t.health.state.syncable()
	r := t.beginSyncLocked(m)
	t.mu.Unlock()
	if syncable {
		data, rows := t.sync(m, &r)
		err = errors.Join(err, data, rows)
		t.commitLoop(m) // rewrites the rows of entries that are no longer doubted
	}
	return errors.Join(err, m.Close())
}

// saveCounters saves the counters that persist over restarts.
func (t *Tier) saveCounters(m *mount) error {
	c := t.Counters()
	kept := map[string]uint64{}
	c.Each(func(name string, value uint64) { kept[name] = value })
	if err := m.Catalog.Failed(); err != nil {
		return nil // logged when it failed
	}
	return m.Catalog.SaveCounters(kept)
}
