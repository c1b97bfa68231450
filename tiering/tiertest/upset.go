package tiertest

import "slices"

// Faults selects how the lower layers of a Disturber fail in a walk: not at all, only with
// reported errors, or also without an error (see Disturber).
type Faults uint8

const (
	NoFaults Faults = iota
	HonestFaults
	LyingFaults
)

// disturb starts a disturbance.
func (w *walk) disturb() {
	d, ok := w.s.(Disturber)
	if !ok || w.o.Faults == NoFaults || w.disturbed {
		return
	}
	w.land()
	w.mu.Lock()
	w.disturbed = true
	w.mu.Unlock()
	lies := w.o.Faults == LyingFaults
	w.note("disturb, lies %v", lies)
	d.Disturb(w.rng, lies)
	w.stats.Disturbed++
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lied = w.lied || lies
	for _, k := range w.names {
		k.level, k.shown = 0, 0
	}
}

// calm ends a disturbance.
func (w *walk) calm() {
	w.Helper()
	if !w.disturbed {
		return
	}
	w.land()
	w.note("calm")
	if err := w.s.(Disturber).Calm(); err != nil {
		w.fail("%v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disturbed = false
}

// restart ends the subject, possibly with writes in flight, and audits what remains.
func (w *walk) restart() {
	w.Helper()
	s, ok := w.s.(Restarter)
	if !ok {
		return
	}
	endings := s.Endings()
	how := endings[w.rng.IntN(len(endings))]
	unsynced := []int{0, 30, 100}[w.rng.IntN(3)]
	w.calm() // so that the subject can be opened again
	w.note("restart, %v, %d %% of what was not synced", how, unsynced)
	if how == Closed {
		w.land()
		for _, b := range w.begun {
			b.Cancel()
		}
		w.begun = nil
	}
	must := w.snapshot(how)
	if err := s.Restart(how, unsynced, w.rng); err != nil {
		w.fail("restart: %v", err)
	}
	w.land()
	for _, b := range w.begun {
		b.Cancel()
	}
	w.begun = nil
	w.stats.Restarts[how]++
	w.cut = w.cut || how == PowerLost
	for _, k := range must {
		w.find(k)
		w.get(k)
	}
	w.stats.Survived[how] += len(must)
	w.chains()
}

// snapshot is called before an ending of the subject. It returns the names that the subject
// must still have after the ending. Answers to earlier operations do not count any more.
func (w *walk) snapshot(how Ending) (must []*known) {
	lasts := [...]uint8{Closed: 2, Killed: 2, PowerLost: 3}[how]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch++
	for _, k := range w.names {
		if safe := w.safeLocked(k); uint8(safe) >= lasts && safe != 0 {
			must = append(must, k)
		}
	}
	for _, k := range w.names {
		if !slices.Contains(must, k) {
			k.level = 0
		}
		k.shown = 0
		if how != Closed { // a removal may not have reached the disk
			k.maybe, k.buried = append(k.maybe, k.buried...), nil
		} else {
			k.buried = nil
		}
	}
	return must
}
