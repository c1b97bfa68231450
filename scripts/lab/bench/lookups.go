package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
)

const (
	manyKeys = 256
	fewKeys  = 32
)

// lookupRows compares matches and acquires with a bare echo of a message that is as long as a
// match of 32 keys.
func lookupRows(ctx context.Context, s *session) (err error) {
	l, err := startLocal(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	keys, err := l.putMany(ctx, l.small, manyKeys)
	if err != nil {
		return err
	}
	big, err := l.put(ctx, l.large)
	if err != nil {
		return err
	}
	e, err := baseline.StartEcho()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()

	request := wire.MatchRequest{Keys: make([][32]byte, fewKeys)}
	message := make([]byte, wire.HeaderBytes+len(request.Append(nil)))
	const n = 400
	sample, err := alternate(s.rounds(120),
		each(n, func() error { return e.RoundTrip(message) }),
		each(n, l.matcher(ctx, keys[:fewKeys])),
		each(n, l.matcher(ctx, keys)),
		l.acquirer(ctx, l.small, keys[0], n/2),
		l.acquirer(ctx, l.large, big, n/2),
	)
	if err != nil {
		return err
	}
	floor, floor99 := median(sample[0]), quantile(sample[0], 0.99)
	s.add(
		row("match_32_p50", "µs", median(sample[1]), floor, bar{atMost: 20, ratioAtMost: 1.3}),
		row("match_32_p99", "µs", quantile(sample[1], 0.99), floor99, bar{atMost: 100}),
		row("match_256_p50", "µs", median(sample[2]), floor, bar{atMost: 60}),
		row("socket_echo_p50", "µs", floor, 0, bar{}),
		row("acquire_0.4MiB_p50", "µs", median(sample[3]), floor, bar{atMost: 40}),
		row("acquire_64MiB_p50", "µs", median(sample[4]), floor, bar{atMost: 40}),
	)
	return nil
}

// matcher looks up keys that are all leased.
func (l *local) matcher(ctx context.Context, keys []profile.SegmentKey) func() error {
	q := connector.MatchQuery{Keys: keys}
	var found connector.Found
	return func() error {
		if err := l.small.Match(ctx, &q, &found); err != nil {
			return err
		}
		for i := range found.Segments {
			if !found.Segments[i].Hit() {
				return fmt.Errorf("match: key %d is %+v", i, found.Segments[i])
			}
		}
		return nil
	}
}

// acquirer returns a function that takes n samples of an acquire, in microseconds. The release
// after each acquire is not included.
func (l *local) acquirer(ctx context.Context, m *model, key profile.SegmentKey, n int) func() ([]float64, error) {
	return func() ([]float64, error) {
		out := make([]float64, n)
		for i := range out {
			begin := time.Now()
			lease, err := l.acquire(ctx, m, key, false)
			out[i] = float64(time.Since(begin).Nanoseconds()) / 1e3
			if err != nil {
				return nil, err
			}
			lease.Release()
		}
		return out, nil
	}
}
