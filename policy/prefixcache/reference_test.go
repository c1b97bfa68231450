package prefixcache_test

import (
	"math"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/prefixcache"
	"github.com/spliced-kv/spliced/policy/prefixcache/tracetest"
)

const gigabyte = 1_000_000_000

func hybrid(capacity int64) prefixcache.Config {
	return prefixcache.Config{Shape: cost.MarconiHybrid7B(cost.ScanCode), CapacityBytes: capacity}
}

func replay(trace tracetest.Trace, to prefixcache.Cache) prefixcache.Stats {
	trace(func(input, output []uint32) { to.Serve(prefixcache.Request{Input: input, Output: output}) })
	return to.Stats()
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	off := got/want - 1
	t.Logf("%-40s %.6f, reference %.6f, %+.4f %%", what, got, want, off*100)
	if math.Abs(off) > 0.001 {
		t.Errorf("%s: %.6f, reference %.6f, off by %+.3f %%", what, got, want, off*100)
	}
}

func TestReleasedHitRatesAt40GB(t *testing.T) {
	trace := tracetest.SWE(t, tracetest.Orders(t), tracetest.Sessions(t, 100), "c5_sps1_art7.5")
	c := hybrid(40 * gigabyte)
	near(t, "V1", replay(trace, prefixcache.NewPathLRU(c)).HitRate(), 0.266452)
	q := prefixcache.AsReleased()
	near(t, "V3 0", replay(trace, prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Quirks: q})).HitRate(), 0.317610)
	near(t, "V3 .1", replay(trace, prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Quirks: q, Alpha: 0.1})).HitRate(), 0.445100)
	near(t, "V3 1", replay(trace, prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Quirks: q, Alpha: 1})).HitRate(), 0.403453)
	m := prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Quirks: q, Bootstrap: 5})
	near(t, "V2", replay(trace, m).HitRate(), 0.377048)
	t.Log(m.Alpha())
	m = prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Bootstrap: 5})
	near(t, "F2", replay(trace, m).HitRate(), 0.374842)
	t.Log(m.Alpha())
	near(t, "F3 .1", replay(trace, prefixcache.NewMarconi(c, prefixcache.MarconiOptions{Alpha: 0.1})).HitRate(), 0.428391)
}
