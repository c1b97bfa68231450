package bench

import (
	"context"
	"errors"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"sync/atomic"
	"testing"
)

// counting is a keeper that only counts.
type counting struct {
	puts, gets atomic.Int64
	fail       error
}

func (c *counting) put(context.Context, int) error { c.puts.Add(1); return c.fail }
func (c *counting) get(context.Context, int) error { c.gets.Add(1); return nil }

func TestDurablePassGoesThroughAllWriters(t *testing.T) {
	k := &counting{}
	put, get, err := durablePass(t.Context(), k, durableSize{name: "x", bytes: 1 << 20, each: 3})
	if want := int64(3 * durableWriters); err != nil || k.puts.Load() != want || k.gets.Load() != want || put <= 0 || get <= 0 {
		t.Errorf("%d puts at %v, %d gets at %v: %v", k.puts.Load(), put, k.gets.Load(), get, err)
	}
	k.fail = errors.New("full")
	if _, _, err := durablePass(t.Context(), k, durableSize{name: "x", bytes: 1 << 20, each: 3}); !errors.Is(err, k.fail) {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := durablePass(ended, &counting{}, durableSize{name: "x", bytes: 1 << 20, each: 3}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestRealRedisKeepsValues(t *testing.T) {
	if _, err := baseline.FindRedis(); err != nil {
		t.Skip(err)
	}
	k, err := openRedis(t.Context(), t.TempDir(), durableSize{name: "4KiB", bytes: 4 << 10, each: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := durablePass(t.Context(), k, k.size); err != nil {
		t.Error(err)
	}
	if err := k.close(); err != nil {
		t.Error(err)
	}
}
