package object

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Store is a bucket as a tier.Remote, and the queue of writes to it.
type Store struct {
	cfg      Config
	keys     *keys
	client   *client
	index    *index
	encoder  *payload.Encoder
	health   health
	room     room
	queue    queue
	counters counters
	requests chan struct{} // has one entry per running read
	listing  chan struct{} // has one entry while a pass runs
}

var (
	_ tier.Remote = (*Store)(nil)
	_ tier.Sink   = (*Store)(nil)
)

// New returns a Store. It starts nothing and sends no request: until Run has listed the
// bucket, there are no hints and no writes.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := newClient(&cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, client: c, keys: newKeys(cfg.Secret, cfg.Tenants), index: newIndex(cfg.IndexBytes),
		encoder:  payload.NewEncoder(cfg.Device, cfg.Coded, cfg.QueueBytes),
		requests: make(chan struct{}, cfg.Requests),
		listing:  make(chan struct{}, 1),
	}
	s.cfg.Secret = nil
	s.health.cfg = &s.cfg
	s.queue.init(&s.cfg)
	return s, nil
}

// Run lists the bucket repeatedly and writes admitted objects, until ctx ends. Then it
// interrupts running uploads, fails queued writes, and returns. It is called once.
func (s *Store) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { s.list(ctx) })
	for range s.cfg.Writers {
		work.Go(func() { s.write(ctx) })
	}
	work.Wait()
	s.queue.close()
	s.client.close()
}

// Hint implements tier.Remote.
func (s *Store) Hint(w *tier.Want) (tier.Hint, bool) {
	t, ok := s.keys.tagOf(w)
	now := s.cfg.Now()
	if !ok || s.index.look(t, now) != present || s.health.alone(now) != nil {
		return tier.Hint{}, false
	}
	return s.health.hint(), true
}

// Expect implements tier.Sink.
func (s *Store) Expect() tier.Hint { return s.health.hint() }

// settle updates the server's health after a request with result err. Errors about a
// single object do not count as failures, and neither do errors because ctx has ended.
func (s *Store) settle(ctx context.Context, err error) {
	switch {
	case err == nil, errors.Is(err, tier.ErrGone), errors.Is(err, errThere), errors.Is(err, errUnconditional):
		s.health.answered()
	case errors.Is(err, tier.ErrFull):
		s.health.ranOut(err, s.cfg.Now())
	case ctx.Err() != nil || !errors.Is(err, tier.ErrUnavailable):
	default:
		s.counters.Failed.Add(1)
		if s.health.failed(err, s.cfg.Now()) {
			s.counters.BreakerOpenings.Add(1)
			s.cfg.Log.Warn().Str("tier", "object").Err(err).Msg("the object store is left alone for a while")
		}
	}
}

// The method read waits for one of Config.Requests slots for reads. The caller frees the
// slot by calling done.
func (s *Store) read(ctx context.Context) (done func(), err error) {
	select {
	case s.requests <- struct{}{}:
		end := s.health.begin()
		return func() { end(); <-s.requests }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("object: wait for %d others: %w", s.cfg.Requests, ctx.Err())
	}
}
