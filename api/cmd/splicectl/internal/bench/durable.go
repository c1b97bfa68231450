package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// The durable section puts values that are on the disk before anyone answers:
// ours through a daemon with level synced beside Redis with appendfsync always,
// both over a unix socket, from as many writers, on the same disk.

const durableWriters = 4

// keeper is a store that can be asked for values over a socket.
type keeper interface {
	// put stores a new value durably, from writer w.
	put(ctx context.Context, w int) error
	// get reads a value that w has put, as much as an engine would: all bytes.
	get(ctx context.Context, w int) error
}

// durableSize is one size of values and how many a writer puts in a round.
type durableSize struct {
	name  string
	bytes int64
	each  int
}

func durableSizes() []durableSize {
	return []durableSize{{"1MiB", 1 << 20, 24}, {"16MiB", 16 << 20, 2}}
}

// durablePass has all writers put, then get, and answers MB/s of both.
func durablePass(ctx context.Context, k keeper, size durableSize) (put, get float64, err error) {
	all := func(f func(context.Context, int) error) (float64, error) {
		s, err := timed(func() error {
			return together(durableWriters, func(w int) error { return repeat(ctx, size.each, w, f) })
		})
		return float64(durableWriters*size.each) * float64(size.bytes) / s / 1e6, err
	}
	if put, err = all(k.put); err != nil {
		return 0, 0, err
	}
	get, err = all(k.get)
	return put, get, err
}

func repeat(ctx context.Context, n, w int, f func(context.Context, int) error) error {
	for range n {
		if err := errors.Join(ctx.Err(), f(ctx, w)); err != nil {
			return err
		}
	}
	return nil
}

// together runs f for 0..n-1 at once.
func together(n int, f func(int) error) error {
	failed := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { failed[i] = f(i) })
	}
	running.Wait()
	return errors.Join(failed...)
}

// redisKeeper is one connection a writer to a server of ours.
type redisKeeper struct {
	server  *redisServer
	sockets string
	conns   []*redisConn
	values  [][]byte
	size    durableSize
	puts    []int
	gets    []int
}

func openRedis(ctx context.Context, dir string, size durableSize) (_ *redisKeeper, err error) {
	program, err := findRedis()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	k := &redisKeeper{size: size, puts: make([]int, durableWriters), gets: make([]int, durableWriters)}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if k.sockets, err = shortDir(); err != nil {
		return nil, err
	}
	if k.server, err = startRedis(ctx, program, dir, k.sockets); err != nil {
		return nil, err
	}
	for w := range durableWriters {
		c, err := dialRedis(k.server.socket)
		if err != nil {
			return nil, err
		}
		k.conns = append(k.conns, c)
		k.values = append(k.values, make([]byte, size.bytes))
		noise(k.values[w], uint64(w))
	}
	return k, nil
}

func (k *redisKeeper) put(_ context.Context, w int) error {
	setStamp(k.values[w], uint64(k.puts[w]))
	err := k.conns[w].set(fmt.Sprintf("%d.%d", w, k.puts[w]%k.size.each), k.values[w])
	k.puts[w]++
	return err
}

func (k *redisKeeper) get(_ context.Context, w int) error {
	err := k.conns[w].get(fmt.Sprintf("%d.%d", w, k.gets[w]%k.size.each), k.values[w])
	k.gets[w]++
	return err
}

func (k *redisKeeper) close() (err error) {
	for _, c := range k.conns {
		err = errors.Join(err, c.close())
	}
	if k.server != nil {
		k.server.stop()
	}
	return errors.Join(err, os.RemoveAll(k.sockets))
}
