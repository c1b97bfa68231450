package disk

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// writer writes the data of queued objects; its loop runs in several workers.
type writer struct {
	*core
	*space
}

// writeLoop writes queued objects until the mount stops. Each worker runs one.
func (t *writer) writeLoop(ctx context.Context, m *mount) {
	for {
		w := t.nextWrite(m)
		if w == nil {
			return
		}
		began := t.cfg.Now()
		if err := t.writeObject(ctx, m, w); err != nil {
			t.failWrite(m, w, err)
			continue
		}
		t.writes.Observe(max(t.cfg.Now().Sub(began), 0).Seconds())
		t.written(m, w)
	}
}

// nextWrite waits for a queued write; nil = the mount stops.
func (t *writer) nextWrite(m *mount) *write {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := &t.queue
	for len(q.waiting) == 0 && !m.stopping {
		t.jobs.Wait()
	}
	if len(q.waiting) == 0 {
		return nil
	}
	w := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	m.flying[w] = m.highest + 1
	if w.entry.phase == queued {
		t.become(w.entry, writing)
	}
	return w
}

// writableLocked returns why an entry cannot be written now; nil = it can.
func (t *core) writableLocked(e *entry) error {
	if e.forgotten() {
		return fmt.Errorf("disk: %x left before it was written: %w", e.Key[:8], tier.ErrGone)
	}
	if !t.health.state.writable() {
		return fmt.Errorf("disk: %s: %w", t.health.state, tier.ErrUnavailable)
	}
	return nil
}

// writeObject writes an object's header and payload to free space. Its row is written
// later. When writeObject returns, the object's memory is no longer used.
func (t *writer) writeObject(ctx context.Context, m *mount, w *write) error {
	e := w.entry
	t.mu.Lock()
	err := t.writableLocked(e)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.KeepProfile(e.model.Profile); err != nil {
		return t.writeTrouble(err)
	}
	p, err := t.coder.Encode(ctx, w.object, e.owner.Name, m.Key)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer p.Release()
	h, err := t.makeHeader(m, e, p)
	if err != nil {
		return err
	}
	h.Sign(m.Key, p.Manifest, p.Tags)
	header, err := h.Append(slab.AlignedBuffer(h.HeaderBytes)[:0], p.Manifest)
	if err == nil {
		err = t.locate(m, w, &h, p)
	}
	if err != nil {
		t.giveSpace(m, h.Runs)
		return err
	}
	if err := m.Write(h.Runs, append([][]byte{header}, p.Buffers...)); err != nil {
		return t.writeFailed(m, e, fmt.Errorf("write %x: %w", e.Key[:8], err))
	}
	w.manifest = p.Manifest
	return nil
}

// makeHeader assigns a generation and space to an entry, and returns a header with both.
func (t *writer) makeHeader(m *mount, e *entry, p *payload.Encoded) (extent.Header, error) {
	h := extent.Header{Name: e.Name, Coded: p.Coded, PayloadBytes: p.Bytes, HeaderBytes: extent.HeaderBytes(len(p.Manifest))}
	end := m.Writes.Begin()
	var err error
	h.Generation, err = m.Catalog.NextGenerations(1)
	end()
	if err != nil {
		return h, t.catalogTrouble(err)
	}
	h.Runs, err = t.takeSpace(m, e, int64(h.HeaderBytes)+h.PayloadBytes)
	return h, err
}

// locate records the generation and location of an entry before its bytes are written.
func (t *writer) locate(m *mount, w *write, h *extent.Header, p *payload.Encoded) error {
	e := w.entry
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.CodedRawBytes += p.RawBytes
	t.counters.CodedBytes += p.CodedBytes
	m.flying[w], m.highest = h.Generation, max(m.highest, h.Generation)
	if err := t.writableLocked(e); err != nil {
		return err
	}
	bytes := slab.RunBytes(h.Runs)
	if bytes > e.bytes || h.HeaderBytes > e.HeaderBytes {
		return fmt.Errorf("disk: %x takes %d bytes with a header of %d, not the %d and %d at most that were counted: %w",
			e.Key[:8], bytes, h.HeaderBytes, e.bytes, e.HeaderBytes, tier.ErrInvalid)
	}
	e.Generation, e.Runs, e.PayloadBytes = h.Generation, h.Runs, h.PayloadBytes
	e.Coded, e.ManifestSum, e.failures = h.Coded, h.ManifestSum, m.failures
	t.resize(e, bytes, h.HeaderBytes)
	return nil
}

// The method written is called when the bytes of write w are in slabs. It passes w to the
// committer, which may answer the waiters of w at once. If the parent entry is also being
// written, w is held back until the parent's write is ready.
func (t *writer) written(m *mount, w *write) {
	e := w.entry
	t.mu.Lock()
	defer t.mu.Unlock()
	m.bad = 0
	m.wroteLocked(e.Runs)
	t.counters.StoredBytes += uint64(e.HeaderBytes) + uint64(e.PayloadBytes)
	if e.phase == writing {
		t.become(e, written)
	}
	if up := e.parent; up != nil && up.phase.pending() && !up.write.ready {
		up.write.followers = append(up.write.followers, w) // its parent's row is written first
		return
	}
	t.readyLocked(w)
}

// readyLocked passes a write, and the writes that wait for it, to the committer.
func (t *core) readyLocked(w *write) {
	w.ready = true
	t.queue.ready = append(t.queue.ready, w)
	for _, f := range w.followers {
		t.readyLocked(f)
	}
	w.followers = nil
	t.rows.Signal()
}

// writeTrouble enters the state that a failed write leads to, and returns the error for
// its waiters.
func (t *writer) writeTrouble(err error) error {
	t.trouble(afterWrite(err), err)
	return fmt.Errorf("disk: %w: %w", err, answer(err))
}

// The space of a failed write is not used again until the directory is opened again, so
// that the next write does not hit the same bad block. At most 1/lostPart of the space is
// given up like this. After failuresToPause failures in a row the disk itself counts as
// bad, and writes pause.
const (
	failuresToPause = 3
	lostPart        = 16
)

// writeFailed decides whether a failed write is due to a few bad blocks or to the disk as
// a whole.
func (t *writer) writeFailed(m *mount, e *entry, err error) error {
	if !errors.Is(err, unix.EIO) {
		return t.writeTrouble(err)
	}
	t.mu.Lock()
	m.bad++
	bytes := slab.RunBytes(e.Runs)
	if !e.forgotten() && m.lost+bytes <= m.capacity/lostPart {
		m.lost += bytes
		m.capacity -= bytes
		e.Runs = nil // so that it is never freed
	}
	pause := m.bad >= failuresToPause
	t.mu.Unlock()
	if pause {
		return t.writeTrouble(err)
	}
	t.log.Warn().Str("tier", "disk").Err(err).Msg("space of the disk tier is given up")
	return fmt.Errorf("disk: %w: %w", err, tier.ErrUnavailable)
}

// failWrite ends a write that has no row, and forgets its entry.
func (t *core) failWrite(m *mount, w *write, err error) {
	e := w.entry
	t.mu.Lock()
	if e.forgotten() {
		t.counters.WritesDropped++
	} else {
		t.counters.WriteErrors++
	}
	t.mu.Unlock()
	t.forgetTree(e)
	t.mu.Lock()
	delete(m.flying, w)
	ended := e.write != w // the directory was closed while it was starting
	if !ended {
		t.endWriteLocked(w, tier.LevelMemory, err)
		t.become(e, gone)
	}
	t.mu.Unlock()
	if !ended {
		t.releaseSpace(m, e)
	}
}

// endWriteLocked ends a write. If err is not nil, it answers the waiters with err.
// Otherwise each waiter gets the level that the entry has, or continues to wait for the
// level that it requested.
func (t *core) endWriteLocked(w *write, reached tier.Level, err error) {
	for _, waiter := range w.waiters {
		if err != nil {
			t.answerLocked(waiter, reached, err)
		} else {
			t.awaitLevelLocked(waiter)
		}
	}
	for _, f := range w.followers {
		t.readyLocked(f) // the committer drops them
	}
	w.waiters, w.followers = nil, nil
	t.unqueueLocked(w.entry)
}
