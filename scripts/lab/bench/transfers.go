package bench

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/connector"
)

// transferRows measures reads with verification, and commits.
func transferRows(ctx context.Context, s *session) (err error) {
	l, err := startLocal(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	if err := l.readRow(ctx, s); err != nil {
		return err
	}
	return l.commitRows(ctx, s)
}

// readRow copies a 64 MiB segment out of the arena and checks the digest of every chunk. Its
// limit is a plain copy of the same parts.
func (l *local) readRow(ctx context.Context, s *session) error {
	key, err := l.put(ctx, l.large)
	if err != nil {
		return err
	}
	lease, err := l.acquire(ctx, l.large, key, true)
	if err != nil {
		return err
	}
	defer lease.Release()
	dst, plain := contents(l.large.layout), contents(l.large.layout)
	bytes := moved(l.large.layout)
	sample, err := alternate(s.rounds(31),
		rate(1, bytes, func() error { return readAll(lease, dst) }),
		rate(1, bytes, func() error {
			for i := range plain {
				copy(plain[i], lease.Part(i))
			}
			return nil
		}),
	)
	if err != nil {
		return err
	}
	s.add(row("read_verify", "GB/s", median(sample[0]), median(sample[1]), bar{ratioAtLeast: 0.65}))
	return nil
}

func readAll(lease *connector.Lease, dst [][]byte) error {
	for i := range dst {
		if err := lease.Read(i, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// commitRows publishes new segments of 1 and of 64 MiB. The limit is a copy of the same number
// of bytes. A sample includes everything that a client waits for: the reservation, the copy into
// staging, digests on both sides, the daemon's copy, and publication.
func (l *local) commitRows(ctx context.Context, s *session) error {
	// Fill the arena once, so that all its pages exist.
	const around = 768/64 + 1
	if _, err := l.putMany(ctx, l.large, around); err != nil {
		return err
	}
	// Like commits, each copy goes to the next megabytes of a buffer that is too large for any
	// cache.
	plain := filled(512 << 20)
	at := 0
	next := func(source [][]byte) func() error {
		return func() error {
			for _, part := range source {
				if at+len(part) > len(plain) {
					at = 0
				}
				at += copy(plain[at:], part)
			}
			return nil
		}
	}
	put := func(m *model) func() error {
		return func() error { _, err := l.put(ctx, m); return err }
	}
	sample, err := alternate(s.rounds(25),
		each(50, put(l.flat)),
		each(50, next(l.flat.source.Parts)),
		rate(1, moved(l.large.layout), put(l.large)),
		rate(1, moved(l.large.layout), next(l.large.source.Parts)),
	)
	if err != nil {
		return err
	}
	s.add(
		row("commit_1MiB_p50", "ms", median(sample[0])/1e3, median(sample[1])/1e3, bar{atMost: 0.35}),
		row("commit_sustained", "GB/s", median(sample[2]), median(sample[3]), bar{atLeast: 2.5}),
	)
	return nil
}
