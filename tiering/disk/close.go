package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Close ends the tier: nothing more is admitted, what was started is finished for
// as long as DrainTime, uses and counters are kept, and all is synced. Run
// returns. The error is one of the directory; the tier is closed all the same,
// apart from what waits for a disk that does not answer: that is left behind after
// another DrainTime.
func (t *Tier) Close() error {
	t.mu.Lock()
	if t.refusing {
		t.mu.Unlock()
		return fmt.Errorf("disk: closed twice: %w", tier.ErrInvalid)
	}
	t.refusing = true
	t.waitLocked(func() bool { return t.started == 0 || !t.running || t.state > StateFull })
	t.closing = true
	t.wakeLocked()
	quiet := t.waitLocked(func() bool { return !t.running && t.reading == 0 })
	v := t.vol
	t.mu.Unlock()
	if !quiet {
		return t.hangs()
	}
	if v == nil {
		return t.closed(nil)
	}
	done := make(chan error, 1)
	go func() { done <- t.closeVolume(v) }()
	late := time.NewTimer(t.cfg.DrainTime)
	defer late.Stop()
	select {
	case err := <-done:
		return t.closed(err)
	case <-late.C:
		return t.hangs()
	}
}

// hangs is the answer when the disk does not.
func (t *Tier) hangs() error {
	return fmt.Errorf("disk: not closed, it has not answered for %v: %w", t.cfg.DrainTime, tier.ErrUnavailable)
}

// closed is the end.
func (t *Tier) closed(err error) error {
	t.mu.Lock()
	t.forgetAllLocked()
	t.vol, t.state, t.stateCause, t.stateSince = nil, StateClosed, nil, t.cfg.Now()
	quiet := t.waitLocked(func() bool { return t.answering == 0 })
	t.mu.Unlock()
	if !quiet {
		err = errors.Join(err, fmt.Errorf("disk: closed, but who was called back has not returned for %v: %w", t.cfg.DrainTime, tier.ErrUnavailable))
	}
	return err
}

// waitLocked waits for a condition, for DrainTime at most.
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

// closeVolume does the last of what Run does, in its place: rows that are still
// to be deleted, a sync, uses and counters.
func (t *Tier) closeVolume(v *volume) error {
	t.stop(v)
	t.commitLoop(v)
	t.saveUses(v)
	err := t.saveCounters(v)
	t.mu.Lock()
	failed := t.state > StatePaused
	r := t.beginSyncLocked(v)
	t.mu.Unlock()
	if !failed {
		data, rows := v.sync(&r)
		t.settleSync(v, &r, data, rows)
		err = errors.Join(err, data, rows)
	}
	return errors.Join(err, v.close())
}

// saveCounters keeps what operators count over restarts.
func (t *Tier) saveCounters(v *volume) error {
	c := t.Counters()
	kept := map[string]uint64{}
	c.Each(func(name string, value uint64) { kept[name] = value })
	if err := v.catalog.Failed(); err != nil {
		return nil // told already, when it failed
	}
	return v.catalog.SaveCounters(kept)
}
