package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// The rows in this file measure a daemon with a disk tier over its socket.

// diskWait is the time that an acquire waits for the disk. It is longer than any operation here,
// so that a slow disk gives a figure and not a miss.
const diskWait = 10 * time.Second

// startOnDisk starts a daemon with a small arena, so that the first segments are soon only on
// disk. The daemon uses LRU, because other policies would keep part of a list that is read
// cyclically in memory. The daemon does not read ahead.
func startOnDisk(ctx context.Context, s *session, dir string, args ...string) (*local, error) {
	d, err := child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: append([]string{"-private", "16MiB",
		"-disk", dir, "-disk-size", "3GiB", "-read-ahead", "off", "-eviction", "lru", "-promote-timeout", "30s"}, args...)})
	if err != nil {
		return nil, err
	}
	l := &local{daemon: d}
	if l.client, err = openClient(d.Socket); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return l, nil
}

func openClient(socket string) (*connector.Client, error) {
	return connector.Open(connector.Options{Socket: socket, Name: "splicectl bench", StagingBytes: 64 << 20, SlotBytes: 1 << 20,
		Timeouts: patient})
}

// bulkModel registers a model with segments of one size.
func (l *local) bulkModel(ctx context.Context, size bulk) (*model, error) {
	m, err := l.model(ctx, "bench-"+size.name, size.layers, largeHeads, size.tokens)
	if err != nil {
		return nil, err
	}
	for i, p := range m.source.Parts {
		machine.Noise(p, uint64(i)) // noise does not compress, like an engine's data
	}
	return m, nil
}

// putSafe publishes segment i and returns once the segment has reached the given durability
// level.
func (m *model) putSafe(ctx context.Context, i int, level wire.Level) (profile.SegmentKey, error) {
	tokens := tokensOf(i, m.spec.Tokens)
	key, ok := m.SegmentKey(m.spec, tokens)
	if !ok {
		return key, errors.New("no salt of the tenant")
	}
	stored, err := m.Put(ctx, &connector.PutQuery{Spec: m.spec, Tokens: tokens, Source: m.source, Level: level})
	if err == nil && stored.Level < level {
		err = fmt.Errorf("it reached level %v", stored.Level)
	}
	if err != nil {
		return key, fmt.Errorf("put segment %d of %d bytes at level %v: %w", i, m.layout.Bytes, level, err)
	}
	return key, nil
}

// where returns the tier of a segment.
func (m *model) where(ctx context.Context, key profile.SegmentKey) (uint8, error) {
	var found connector.Found
	if err := m.Match(ctx, &connector.MatchQuery{Keys: []profile.SegmentKey{key}}, &found); err != nil {
		return 0, err
	}
	if !found.Segments[0].Hit() {
		return 0, fmt.Errorf("segment %x is gone", key[:6])
	}
	return found.Segments[0].Tier, nil
}

// promote leases a segment from any tier and releases it.
func (m *model) promote(ctx context.Context, key profile.SegmentKey) error {
	got, err := m.Acquire(ctx, []profile.SegmentKey{key}, connector.AcquireOptions{Wait: diskWait})
	if err != nil {
		return err
	}
	if got[0].Err != nil {
		return fmt.Errorf("acquire %x from disk: %w", key[:6], got[0].Err)
	}
	got[0].Lease.Release()
	return nil
}

// promotionRow times acquires of 64 MiB segments that are only on disk, from the client's
// request to the lease.
func promotionRow(ctx context.Context, s *session) (err error) {
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	size := s.pass(bulks()[1])
	if s.effort < 1 {
		size.segments = 5 // more than the arena holds
	}
	limit, err := newLimits(ctx, s, d, size.bytes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limit.free()) }()
	l, err := startOnDisk(ctx, s, d.Path("tier"), "-arena", "256MiB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	m, err := l.bulkModel(ctx, size)
	if err != nil {
		return err
	}
	keys := make([]profile.SegmentKey, size.segments)
	for i := range keys {
		if keys[i], err = m.putSafe(ctx, i+1, wire.LevelSynced); err != nil {
			return err
		}
	}
	read := baseline.Transfer{Bytes: size.bytes(), Block: tierBlock, Workers: tierDepth}
	figures := []func() ([]float64, error){
		limit.byFio(ctx, read), limit.byLoop(ctx, read),
		func() ([]float64, error) { return m.promotions(ctx, keys) },
	}
	if _, err := alternate(1, figures...); err != nil {
		return err
	}
	before, err := machine.UsageOf(l.daemon.PID())
	if err != nil {
		return err
	}
	got, err := alternate(s.rounds(5), figures...)
	if err != nil {
		return err
	}
	after, err := machine.UsageOf(l.daemon.PID())
	if err != nil {
		return err
	}
	promoted := m.layout.Bytes * int64(len(got[2]))
	s.add(
		row("disk_promotion_64MiB", "GB/s", median(got[2]), best(got[0], got[1]), bar{ratioAtLeast: 0.8}),
		row("disk_promotion_64MiB_p50", "ms", float64(m.layout.Bytes)/median(got[2])/1e6, 0, bar{}),
		row("disk_promotion_cpu_64MiB", "s/GB", after.Since(before).CPUPerGB(promoted), 0, bar{atMost: 0.7}),
	)
	return nil
}

// promotions acquires each segment once and returns the rates in GB/s. All segments together
// exceed the arena, so that each has been evicted when it is acquired again.
func (m *model) promotions(ctx context.Context, keys []profile.SegmentKey) ([]float64, error) {
	out := make([]float64, len(keys))
	for i, key := range keys {
		tier, err := m.where(ctx, key)
		if err != nil {
			return nil, err
		}
		if tier != wire.TierDisk {
			return nil, fmt.Errorf("segment %d is in tier %d, not only on disk", i, tier)
		}
		s, err := timed(func() error { return m.promote(ctx, key) })
		if err != nil {
			return nil, err
		}
		out[i] = float64(m.layout.Bytes) / s / 1e9
	}
	return out, nil
}
