package object

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// queue counts the objects that are admitted and not written yet, and holds the started ones.
type queue struct {
	mu     sync.Mutex
	objs   int
	bytes  int64
	names  map[tag]bool
	closed bool
	idle   *sync.Cond // signals that objs is 0

	most   int64
	length int
	ready  chan *write // started writes; the capacity is length
	pace   pace
}

func (q *queue) init(c *Config) {
	q.names, q.ready = map[tag]bool{}, make(chan *write, c.QueueLen)
	q.most, q.length = c.QueueBytes, c.QueueLen
	q.idle = sync.NewCond(&q.mu)
	q.pace.rate = c.BytesPerSecond
}

// write is an admitted object.
type write struct {
	*Store
	object *tier.Object
	owner  *tenant
	tag    tag
	bytes  int64
	done   func(tier.Level, error)
}

var _ tier.Write = (*write)(nil)

// Admit accepts an object to be written asynchronously. It reads memory only, never waits
// and never calls back. Its errors mean:
//
//   - tier.ErrExists: the object is in the bucket, or in flight
//   - ErrBusy: too much is queued, or the bucket was not listed yet
//   - ErrFull: the prefix or the server has no room
//   - ErrUnavailable: the server is not asked now, or Run has ended
//   - ErrInvalid: the tenant is unknown, or the object has no bytes or is too large
//
// The object's memory may be read until the callback passed to Start is called. The
// callback gets LevelSynced if the server has the object, no matter which node has written
// it.
func (s *Store) Admit(o *tier.Object) (tier.Write, error) {
	f := o.Profile.Fingerprint()
	t, ok := s.keys.tag(o.Tenant, &f, &tier.Name{Kind: o.Kind, Key: o.Key})
	w := &write{Store: s, object: o, owner: s.keys.tenants[o.Tenant], tag: t}
	for i := range o.Shares {
		w.bytes += o.Shares[i].Ref.Len()
	}
	if !ok || len(o.Shares) == 0 || w.bytes > maxObjectBytes-maxHeaderBytes-blockBytes {
		return nil, fmt.Errorf("object: %x of tenant %d, %d bytes: %w", o.Key[:8], o.Tenant, w.bytes, tier.ErrInvalid)
	}
	if err := s.admit(w); err != nil {
		s.counters.refused(err)
		return nil, fmt.Errorf("object: %x: %w", o.Key[:8], err)
	}
	s.counters.Admitted.Add(1)
	return w, nil
}

func (s *Store) admit(w *write) error {
	now := s.cfg.Now()
	if s.index.look(w.tag, now) == present {
		return fmt.Errorf("it is in the bucket: %w", tier.ErrExists)
	}
	if err := s.health.alone(now); err != nil {
		return err
	}
	if err := s.health.full(now); err != nil {
		return err
	}
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return fmt.Errorf("closed: %w", tier.ErrUnavailable)
	case q.names[w.tag]:
		return fmt.Errorf("it is on its way: %w", tier.ErrExists)
	case !s.index.listed.Load():
		return fmt.Errorf("the bucket was not listed yet: %w", tier.ErrBusy)
	case q.objs >= q.length || q.objs > 0 && q.bytes+w.bytes > q.most:
		return fmt.Errorf("%d objects of %d bytes are queued: %w", q.objs, q.bytes, tier.ErrBusy)
	case !s.room.fits(q.bytes+w.bytes, s.cfg.Bytes):
		return fmt.Errorf("the prefix holds %d bytes of %d: %w", s.room.held(), s.cfg.Bytes, tier.ErrFull)
	}
	q.objs++
	q.bytes += w.bytes
	q.names[w.tag] = true
	return nil
}

// leave removes a write from the queue.
func (q *queue) leave(w *write) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.objs--
	q.bytes -= w.bytes
	delete(q.names, w.tag)
	if q.objs == 0 {
		q.idle.Broadcast()
	}
}

// Cancel implements tier.Write.
func (w *write) Cancel() { w.queue.leave(w) }

// Start implements tier.Write. It does not wait: the queue has room for every admitted write.
func (w *write) Start(_ tier.Level, done func(tier.Level, error)) {
	w.done = done
	q := &w.queue
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.ready <- w
	}
	q.mu.Unlock()
	if closed {
		go w.end(fmt.Errorf("object: closed: %w", tier.ErrUnavailable))
	}
}

// close fails queued writes, and refuses new ones.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	close(q.ready)
	q.mu.Unlock()
	for w := range q.ready {
		w.end(fmt.Errorf("object: closed: %w", tier.ErrUnavailable))
	}
}

// Drain waits until all admitted writes have ended. It fails if ctx ends earlier.
func (s *Store) Drain(ctx context.Context) error {
	q := &s.queue
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.idle.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.objs > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("object: %d objects are not written: %w", q.objs, err)
		}
		q.idle.Wait()
	}
	return nil
}

// write writes queued objects until ctx ends.
func (s *Store) write(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case w := <-s.queue.ready:
			w.end(w.run(ctx))
		case <-ctx.Done():
		}
	}
}

// The method end reports the result of a write.
func (w *write) end(err error) {
	level := tier.LevelSynced
	if err != nil {
		level = tier.LevelMemory
	}
	w.queue.leave(w)
	w.done(level, err)
}

// run writes an object to the bucket.
func (w *write) run(ctx context.Context) error {
	known := w.index.look(w.tag, w.cfg.Now())
	if known == present {
		return nil
	}
	if err := w.health.alone(w.cfg.Now()); err != nil {
		return err
	}
	if err := w.health.full(w.cfg.Now()); err != nil {
		return err
	}
	there, size, err := w.upload(ctx, known)
	w.settle(ctx, err)
	now := w.cfg.Now()
	switch {
	case err != nil:
		w.counters.WriteErrors.Add(1)
		return fmt.Errorf("object: write %x: %w", w.object.Key[:8], err)
	case there:
		w.counters.There.Add(1)
	default:
		w.counters.Written.Add(1)
		w.counters.WrittenBytes.Add(uint64(w.bytes))
		w.counters.StoredBytes.Add(uint64(size))
		w.room.add(size)
	}
	w.index.note(w.tag, present, time.Time{}, now)
	return nil
}

// upload writes an object, unless the bucket already has it; then the result there is true.
// If the bucket has wrong bytes for the object, upload replaces them. size is the number of
// bytes sent.
func (w *write) upload(ctx context.Context, known what) (there bool, size int64, err error) {
	if known == unknown { // find out without sending the bytes
		if there, err = w.client.exists(ctx, w.tag); there || err != nil {
			return there, 0, err
		}
	}
	o := w.object
	e, err := w.encoder.Encode(ctx, o, w.owner.label, w.keys.seal)
	if err != nil {
		return false, 0, err
	}
	defer e.Release()
	x := extent.Header{Name: extentName(tier.Name{Kind: o.Kind, Key: o.Key}), Generation: generation(), Coded: e.Coded, PayloadBytes: e.Bytes}
	b, err := w.keys.putHead(w.tag, &x, e.Manifest, e.Tags)
	if err != nil {
		return false, 0, err
	}
	size = int64(len(b)) + e.Bytes
	bufs := append([][]byte{b}, e.Buffers...)
	err = w.put(ctx, bufs, size, known == wrong)
	if errors.Is(err, errUnconditional) && known != wrong {
		if there, err = w.client.exists(ctx, w.tag); there || err != nil {
			return there, 0, err
		}
		err = w.put(ctx, bufs, size, true)
	}
	if errors.Is(err, tier.ErrUnavailable) && known != wrong && ctx.Err() == nil {
		// The object may be there in spite of the error: a server that refuses a body may
		// close the connection before its answer is read, and after a write the answer
		// may be lost.
		if there, e := w.client.exists(ctx, w.tag); e == nil && there {
			return true, 0, nil
		}
	}
	if errors.Is(err, errThere) {
		return true, 0, nil
	}
	return false, size, err
}

// generation returns a random number that distinguishes uploads.
func generation() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// put sends an object's bytes, no faster than the pace of all writes allows.
func (w *write) put(ctx context.Context, bufs [][]byte, size int64, replace bool) error {
	watched, moved, stop := w.client.watch(ctx)
	defer stop()
	return w.client.put(watched, w.tag, &body{ctx: watched, client: w.client, rest: bufs, pace: &w.queue.pace, moved: moved}, size, replace)
}

// body is the body of an upload. It reads buffers one after another, at a pace.
type body struct {
	ctx    context.Context
	client *client
	rest   [][]byte
	pace   *pace
	moved  func()
}

// paceBytes is the most bytes of one Read.
const paceBytes = 64 << 10

func (b *body) Read(p []byte) (int, error) {
	for len(b.rest) > 0 && len(b.rest[0]) == 0 {
		b.rest = b.rest[1:]
	}
	if len(b.rest) == 0 {
		b.moved()
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), paceBytes)], b.rest[0])
	if wait := b.pace.take(n, time.Now()); wait > 0 {
		if b.client.pause(b.ctx, wait, b.moved) != nil {
			return 0, context.Cause(b.ctx)
		}
	}
	b.moved()
	b.rest[0] = b.rest[0][n:]
	return n, nil
}

// pace spreads bytes over time. The zero value has no limit.
type pace struct {
	rate int64 // bytes per second; 0 = no limit
	mu   sync.Mutex
	next time.Time
}

// take reserves time for n bytes and returns the delay before they may be sent.
func (p *pace) take(n int, now time.Time) time.Duration {
	if p.rate == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	return wait
}
