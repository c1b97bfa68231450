package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// The durable section puts values that must be on the disk before the answer. It compares a
// daemon that stores at level synced with Redis that has appendfsync always. Both are reached
// over a unix socket, with the same number of writers, on the same disk. The rows show Redis as
// their limit, but a ratio above one means that the daemon is better.

const durableWriters = 4

// keeper is a store that answers requests for values over a socket.
type keeper interface {
	// put stores a new value durably, from writer w.
	put(ctx context.Context, w int) error
	// get reads all bytes of a value that w has put, as an engine would.
	get(ctx context.Context, w int) error
}

// durableSize is a size of values. bytes is the size of a value, each is the number of values
// that a writer puts in a round, and model is the model whose segments have this size.
type durableSize struct {
	name  string
	bytes int64
	each  int
	model bulk
}

func durableSizes() []durableSize {
	return []durableSize{{"1MiB", 1 << 20, 24, bulk{name: "1MiB", tokens: flatTokens}}, {"16MiB", 16 << 20, 3, bulks()[0]}}
}

// durableRows measures both sizes of values.
func durableRows(ctx context.Context, s *session) error {
	if _, err := baseline.FindRedis(); err != nil {
		s.skip("redis", err.Error())
	}
	for _, size := range durableSizes() {
		if err := durableRow(ctx, s, size); err != nil {
			return fmt.Errorf("%s: %w", size.name, err)
		}
	}
	return nil
}

func durableRow(ctx context.Context, s *session, size durableSize) (err error) {
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	node, err := openNode(ctx, s, d.Path("tier"), size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.stop()) }()
	size.bytes = node.model.layout.Bytes
	var puts, gets [2][]float64
	figures := []func() ([]float64, error){durableFigure(ctx, node, size, &puts[0], &gets[0])}
	if _, err := baseline.FindRedis(); err == nil {
		redis, err := openRedis(ctx, d.Path("redis"), size)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, redis.close()) }()
		figures = append(figures, durableFigure(ctx, redis, size, &puts[1], &gets[1]))
	}
	if _, err := alternate(1, figures...); err != nil { // first touches
		return err
	}
	puts, gets = [2][]float64{}, [2][]float64{}
	if _, err := alternate(s.rounds(4), figures...); err != nil {
		return err
	}
	s.add(
		row("put_synced_"+size.name, "MB/s", median(puts[0]), median(puts[1]), bar{}),
		row("get_copied_"+size.name, "MB/s", median(gets[0]), median(gets[1]), bar{}),
	)
	return nil
}

// durableFigure adds samples of a pass to puts and gets.
func durableFigure(ctx context.Context, k keeper, size durableSize, puts, gets *[]float64) func() ([]float64, error) {
	return func() ([]float64, error) {
		put, get, err := durablePass(ctx, k, size)
		*puts, *gets = append(*puts, put), append(*gets, get)
		return nil, err
	}
}

// durablePass lets all writers put, then get, and returns MB/s of both.
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

// together runs f for 0..n-1 concurrently.
func together(n int, f func(int) error) error {
	failed := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { failed[i] = f(i) })
	}
	running.Wait()
	return errors.Join(failed...)
}

// nodeKeeper is a daemon with a disk. Its clients copy the bytes of a value and check their
// digests, like an engine that does not read mapped memory in place.
type nodeKeeper struct {
	*local
	model  *model
	size   durableSize
	puts   []int
	leases [][]byte // destination of each writer's copies
}

func openNode(ctx context.Context, s *session, dir string, size durableSize) (*nodeKeeper, error) {
	l, err := startOnDisk(ctx, s, dir, "-arena", "1GiB")
	if err != nil {
		return nil, err
	}
	k := &nodeKeeper{local: l, size: size, puts: make([]int, durableWriters)}
	if k.model, err = l.bulkModel(ctx, size.model); err != nil {
		return nil, errors.Join(err, l.stop())
	}
	for range durableWriters {
		k.leases = append(k.leases, make([]byte, k.model.layout.Bytes))
	}
	return k, nil
}

// number returns the number of the n-th segment that writer w puts.
func (k *nodeKeeper) number(w, n int) int { return 1 + w<<20 + n }

func (k *nodeKeeper) put(ctx context.Context, w int) error {
	_, err := k.model.putSafe(ctx, k.number(w, k.puts[w]), wire.LevelSynced)
	k.puts[w]++
	return err
}

// get reads the last values put, newest first.
func (k *nodeKeeper) get(ctx context.Context, w int) error {
	k.puts[w]--
	n := k.puts[w]
	if n%k.size.each == 0 {
		k.puts[w] += k.size.each // all of this round were read: the next one starts after it
	}
	key, _ := k.model.SegmentKey(k.model.spec, tokensOf(k.number(w, n), k.model.spec.Tokens))
	lease, err := k.acquire(ctx, k.model, key, true)
	if err != nil {
		return err
	}
	defer lease.Release()
	for i, p := range k.model.layout.Parts {
		if err := lease.Read(i, k.leases[w][p.Off:p.Off+p.Len]); err != nil {
			return err
		}
	}
	return nil
}

// redisKeeper is a server with one connection per writer.
type redisKeeper struct {
	server  *baseline.RedisServer
	sockets string
	conns   []*baseline.RedisConn
	values  [][]byte
	size    durableSize
	puts    []int
	gets    []int
}

func openRedis(ctx context.Context, dir string, size durableSize) (_ *redisKeeper, err error) {
	program, err := baseline.FindRedis()
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
	// Socket paths must be short.
	if k.sockets, err = os.MkdirTemp("", "spliced-"); err != nil {
		return nil, err
	}
	if k.server, err = baseline.StartRedis(ctx, program, dir, k.sockets); err != nil {
		return nil, err
	}
	for w := range durableWriters {
		c, err := baseline.DialRedis(k.server.Socket)
		if err != nil {
			return nil, err
		}
		k.conns = append(k.conns, c)
		k.values = append(k.values, make([]byte, size.bytes))
		machine.Noise(k.values[w], uint64(w))
	}
	return k, nil
}

func (k *redisKeeper) put(_ context.Context, w int) error {
	setStamp(k.values[w], uint64(k.puts[w]))
	err := k.conns[w].Set(fmt.Sprintf("%d.%d", w, k.puts[w]%k.size.each), k.values[w])
	k.puts[w]++
	return err
}

func (k *redisKeeper) get(_ context.Context, w int) error {
	err := k.conns[w].Get(fmt.Sprintf("%d.%d", w, k.gets[w]%k.size.each), k.values[w])
	k.gets[w]++
	return err
}

func (k *redisKeeper) close() (err error) {
	for _, c := range k.conns {
		err = errors.Join(err, c.Close())
	}
	if k.server != nil {
		k.server.Stop()
	}
	return errors.Join(err, os.RemoveAll(k.sockets))
}
