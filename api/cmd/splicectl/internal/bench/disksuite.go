package bench

import (
	"context"
	"errors"
)

// diskSections are those of the suite disk: the tier beside fio, both on one
// disk, in turns.
func diskSections() []section {
	return []section{{"codec", codecRows}, {"durable", durableRows}}
}

// durableRows compares at both sizes.
func durableRows(ctx context.Context, s *session) error {
	for _, size := range durableSizes() {
		if err := durableRow(ctx, s, size); err != nil {
			return err
		}
	}
	return nil
}

func durableRow(ctx context.Context, s *session, size durableSize) (err error) {
	d, err := newScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	redis, err := openRedis(ctx, d.path("redis"), size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	var puts, gets []float64
	for range s.rounds(5) {
		put, get, err := durablePass(ctx, redis, size)
		if err != nil {
			return err
		}
		puts, gets = append(puts, put), append(gets, get)
	}
	s.add(row("redis_set_"+size.name, "MB/s", median(puts), 0, bar{}), row("redis_get_"+size.name, "MB/s", median(gets), 0, bar{}))
	return nil
}
