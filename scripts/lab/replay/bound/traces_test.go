package bound_test

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/tracetest"
	"github.com/spliced-kv/spliced/scripts/lab/replay/bound"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
	"github.com/spliced-kv/spliced/scripts/lab/replay/prefixcache"
)

const gigabyte = 1_000_000_000

// How far the default policy is from what is possible with all of the future
// known and states where Marconi's admission puts them. Where the bound is what
// endless room gives, it says that the room would do, if one knew what returns.
func TestDefaultAgainstTheBound(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulation")
	}
	orders, sessions := tracetest.Orders(t), tracetest.Sessions(t, 100)
	for _, c := range []struct {
		name   string
		trace  tracetest.Trace
		unit   int
		tokens float64 // hit with endless room
		rows   []row
	}{
		{"c5_sps1_art7.5", tracetest.SWE(t, orders, sessions, "c5_sps1_art7.5"), 1, 0.6507, []row{{40, 0.6508, 0.85}, {60, 0.6508, 0.98}}},
		{"c5_sps5_art10", tracetest.SWE(t, orders, sessions, "c5_sps5_art10"), 1, 0.6507, []row{{40, 0.6508, 0.80}, {60, 0.6508, 0.97}}},
		{"app_sps1_art7.5", tracetest.SWE(t, orders, sessions, "app_sps1_art7.5"), 1, 0.9736, []row{{40, 0.8180, 0.75}, {60, 0.9535, 0.90}}},
		{"conversations", tracetest.Mooncake(t), 512, 0.3668, []row{{300, 0.3669, 0.51}, {1000, 0.3669, 0.88}}},
	} {
		shape := flops.MarconiHybrid7B(flops.ScanCode)
		b := bound.New(bound.Options{
			StateBytes: float64(shape.CheckpointBytes()), TokenBytes: float64(shape.RowBytes(1)), Unit: c.unit, Boundaries: true,
		})
		c.trace(func(input, output []uint32) { b.Add(slices.Clone(input), slices.Clone(output)) })
		if got := b.Rate(1e18); got < c.tokens-1e-4 || got > c.tokens+1e-4 {
			t.Errorf("%s: endless room bounded at %.4f, want %.4f", c.name, got, c.tokens)
		}
		for _, r := range c.rows {
			cache := prefixcache.New(prefixcache.Options{Config: prefixcache.Config{
				Shape: shape, CapacityBytes: r.capacityGB * gigabyte, SymbolTokens: c.unit,
			}}, policy.NewDefault())
			c.trace(func(input, output []uint32) { cache.Serve(prefixcache.Request{Input: input, Output: output}) })
			got, most := cache.Stats().HitRate(), b.Rate(float64(r.capacityGB*gigabyte))
			t.Logf("%-16s %4d GB: %.4f, bound %.4f: %.1f %% of it", c.name, r.capacityGB, got, most, 100*got/most)
			if most > r.bound {
				t.Errorf("%s at %d GB: bound %.4f, want %.4f at most", c.name, r.capacityGB, most, r.bound)
			}
			if got > most {
				t.Errorf("%s at %d GB: %.4f is above the bound %.4f", c.name, r.capacityGB, got, most)
			}
			if got < r.part*most {
				t.Errorf("%s at %d GB: %.4f of the bound, want %.2f", c.name, r.capacityGB, got/most, r.part)
			}
		}
	}
}

// row is a capacity, the bound that the prices found give, and the least part of
// it for the default.
type row struct {
	capacityGB  int64
	bound, part float64
}
