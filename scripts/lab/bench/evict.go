package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// The arena has one small object per page. It has room for the objects that one reserve evicts,
// the objects that stay leased, and evictSpare more.
const (
	evictObjects = 10000
	evictPage    = 4096
	evictTokens  = 2 // a segment of the attention-only model takes one page
	evictSpare   = 256
	evictRounds  = 5
	evictSmoke   = 500
	evictTries   = 20 // further rounds, until a match ran during an eviction
)

// evictRows measures matches of leased segments while a single reserve of another client evicts
// 10,000 objects, and compares them with matches just before.
func evictRows(ctx context.Context, s *session) (err error) {
	objects := evictObjects
	if s.effort < 1 {
		objects = evictSmoke
	}
	l, err := startForEviction(ctx, s, objects)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	match, err := l.heldPages(ctx)
	if err != nil {
		return err
	}
	p, err := startPeer(l.daemon.Socket, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	var idle, busy, took []float64
	// A reserve of few objects may complete before any match runs.
	rounds := s.rounds(evictRounds)
	for i := 0; i < rounds || len(busy) == 0; i++ {
		if i == rounds+evictTries {
			return fmt.Errorf("no match ran beside any of %d reserves", i)
		}
		if _, err := orderAll([]*peer{p}, peerOrder{Kind: peerFill, From: (i + 1) * objects, Count: objects}); err != nil {
			return err
		}
		calm, err := during(50*time.Millisecond, match)()
		if err != nil {
			return err
		}
		beside, reserve, err := l.besideEviction(ctx, p, objects, match)
		if err != nil {
			return err
		}
		idle, busy, took = append(idle, calm...), append(busy, beside...), append(took, reserve)
	}
	s.add(
		row("match_32_p50_evicting", "µs", median(busy), median(idle), bar{}),
		row("match_32_p99_evicting", "µs", quantile(busy, 0.99), quantile(idle, 0.99), bar{ratioAtMost: 2}),
		row("match_32_max_evicting", "µs", slices.Max(busy), slices.Max(idle), bar{}),
		row("reserve_evicting", "ms", median(took), 0, bar{}),
	)
	return nil
}

// startForEviction starts a daemon whose memory is filled by a number of objects.
func startForEviction(ctx context.Context, s *session, objects int) (*local, error) {
	pages := objects + fewKeys + evictSpare
	d, err := child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: []string{
		"-page-bytes", strconv.Itoa(evictPage), "-arena", strconv.Itoa(pages * evictPage), "-private", "1MiB", "-eviction", "lru"}})
	if err != nil {
		return nil, err
	}
	l := &local{daemon: d}
	if l.client, err = openClient(d.Socket); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	if l.flat, err = l.model(ctx, "bench-flat", 0, 0, evictTokens); err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

// heldPages puts a few objects, keeps them leased and returns a function that matches them.
func (l *local) heldPages(ctx context.Context) (func() error, error) {
	keys, err := l.putMany(ctx, l.flat, fewKeys)
	if err != nil {
		return nil, err
	}
	if _, err := l.flat.Acquire(ctx, keys, connector.AcquireOptions{All: true}); err != nil {
		return nil, err
	}
	return (&local{small: l.flat}).matcher(ctx, keys), nil
}

// besideEviction matches while a peer makes room for one large object. It returns the times of
// these matches in µs, and the time of the peer's reserve in ms.
func (l *local) besideEviction(ctx context.Context, p *peer, objects int, match func() error) (took []float64, reserve float64, err error) {
	before, err := l.evicted(ctx)
	if err != nil {
		return nil, 0, err
	}
	answered := make(chan struct{})
	var a peerAnswer
	var failed error
	go func() { // so that matches run before the eviction begins
		defer close(answered)
		if failed = p.order(peerOrder{Kind: peerEvict, Count: objects}); failed == nil {
			a, failed = p.answer()
		}
	}()
	var spans [][2]time.Time
	for done := false; !done; {
		begin := time.Now()
		if err := match(); err != nil {
			<-answered
			return nil, 0, errors.Join(err, failed)
		}
		spans = append(spans, [2]time.Time{begin, time.Now()})
		select {
		case <-answered:
			done = true
		default:
		}
	}
	after, err := l.evicted(ctx)
	if err := errors.Join(failed, err); err != nil {
		return nil, 0, err
	}
	if n := int(after - before); n < objects-evictSpare-1 {
		return nil, 0, fmt.Errorf("one reserve evicted %d objects of %d", n, objects)
	}
	for _, span := range spans {
		if span[1].After(a.Began) && span[0].Before(a.Began.Add(time.Duration(a.Seconds*1e9))) {
			took = append(took, float64(span[1].Sub(span[0]).Nanoseconds())/1e3)
		}
	}
	return took, a.Seconds * 1e3, nil
}

// evicted returns the number of objects evicted from memory for lack of room.
func (l *local) evicted(ctx context.Context) (float64, error) {
	counters, err := l.daemon.API().Counters(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range counters {
		if c.Name == "evicted_room" {
			return c.Value, nil
		}
	}
	return 0, errors.New("no counter of evictions")
}

// putPages fills memory with a number of small objects.
func (m *model) putPages(ctx context.Context, from, count int) error {
	small := *m
	small.spec = profile.FirstSpec(evictTokens)
	l := &local{next: from}
	parts := contents(small.Profile().SegmentLayout(evictTokens))
	small.source = connector.Source{Parts: parts}
	_, err := l.putMany(ctx, &small, count)
	return err
}

// reservePages reserves an object of a number of pages and aborts it.
func (m *model) reservePages(ctx context.Context, count int) error {
	spec := profile.FirstSpec(evictTokens * count)
	tokens := make([]uint32, spec.Tokens)
	tokens[0] = uint32(time.Now().UnixNano()) // never put before
	_, err := m.Put(ctx, &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{
		Fill: func(profile.Part, int, int64, []byte) error { return errEnough }}})
	if !errors.Is(err, errEnough) {
		return fmt.Errorf("reserve of %d pages: %w", count, err)
	}
	return nil
}
