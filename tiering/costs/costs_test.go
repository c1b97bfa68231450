package costs

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func newProfile(t *testing.T) *profile.Profile {
	t.Helper()
	p, err := profile.New(profile.Identity{Model: "m", Weights: [32]byte{7}, Tokenizer: "bytes", TPSize: 1, Layers: []profile.Layer{
		{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: 4, ValueHeads: 8, KeyDim: 64, ValueDim: 64, StateDType: profile.F32, TransitionDType: profile.F16,
		}},
		{Kind: profile.KindFull, Attention: profile.Attention{KVHeads: 4, KeyDim: 128, ValueDim: 128, DType: profile.BF16, Keys: profile.AtZero}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// measured are prefills of many lengths on a computer that is so many times slower
// than the prior.
func measured(times float64) []cost.Sample {
	var list []cost.Sample
	for range 30 {
		for _, n := range []int{100, 1000, 4096, 20_000} {
			list = append(list, cost.Sample{End: n, Millis: times * cost.DefaultPrefill.Millis(0, n)})
		}
	}
	return list
}

// slower is how many times the prior a prefill is believed to take.
func (l *Learned) slower() float64 {
	return l.Model().Prefill().Millis(0, claimTokens) / cost.DefaultPrefill.Millis(0, claimTokens)
}

func TestPrefillsAreWhatTenantsAgreeOn(t *testing.T) {
	type claim struct {
		tenant tier.TenantID
		times  float64
	}
	for _, row := range []struct {
		claims []claim
		alone  bool
		want   float64
	}{
		{nil, false, 1},
		{[]claim{{1, 1000}}, true, 1000},
		{[]claim{{1, 3}}, false, 3},
		{[]claim{{1, 1000}}, false, claimMost},
		{[]claim{{1, 0.005}}, false, 1.0 / claimMost},
		{[]claim{{1, 3}, {2, 1000}}, false, 3},
		{[]claim{{1, 1000}, {2, 3}}, false, 3},
		{[]claim{{1, 3}, {2, 0.005}}, false, 1},
		{[]claim{{1, 40}, {2, 50}}, false, 40},
		{[]claim{{1, 3}, {2, 1000}, {3, 5}}, false, 5},
		{[]claim{{1, 3}, {2, 0.005}, {3, 5}}, false, 3},
		{[]claim{{1, 1000}, {1, 1000}, {2, 3}, {3, 5}}, false, 5},
		{[]claim{{1, 2}, {2, 3}, {3, 5}, {4, 1000}}, false, 3},
	} {
		t.Run(fmt.Sprint(row.claims, row.alone), func(t *testing.T) {
			l := New(newProfile(t), Priors{})
			n := 0
			for _, c := range row.claims {
				n += l.Measured(c.tenant, time.Time{}, measured(c.times), row.alone)
			}
			if got := l.slower(); got < 0.98*row.want || got > 1.02*row.want {
				t.Errorf("%.4f times the prior, want %.4f", got, row.want)
			}
			if got := l.Snapshot().Samples; got != n || n != 120*len(row.claims) {
				t.Errorf("%d samples, %d were taken", got, n)
			}
		})
	}
}

// TestJobsDoNotWaitForAFit: commits and loads of all tenants tell how long
// they took while one tenant's samples are fitted.
func TestJobsDoNotWaitForAFit(t *testing.T) {
	l := New(newProfile(t), Priors{})
	l.fitting.Lock()
	defer l.fitting.Unlock()
	before := l.jobs
	l.Did(cost.JobPublish, 1<<20, time.Millisecond)
	if l.jobs != before+1 {
		t.Errorf("%d jobs measured, were %d", l.jobs, before)
	}
	l.Snapshot()
}

func TestSnapshotTellsGuessesFromWhatWasMeasured(t *testing.T) {
	l := New(newProfile(t), Priors{DRAMBytesPerSecond: 5e9})
	if s := l.Snapshot(); s.PrefillMeasured || s.Measured != ([cost.JobPublish + 1]bool{}) {
		t.Errorf("before anything was measured: %v, %v", s.PrefillMeasured, s.Measured)
	}
	l.Did(cost.JobPublish, 1<<20, time.Millisecond)
	l.Measured(1, time.Time{}, measured(3), true)
	s := l.Snapshot()
	if !s.PrefillMeasured || !s.Measured[cost.JobPublish] || s.Measured[cost.JobLoadDRAM] {
		t.Errorf("after a publication and prefills: %v, %v", s.PrefillMeasured, s.Measured)
	}
}

// Segments that take less than their layout says are believed to, after some of them.
func TestSegmentsAreAsLargeAsTheLastOnes(t *testing.T) {
	l := New(newProfile(t), Priors{})
	shape := l.Model().Shape
	plain := shape.SegmentTotalBytes(100)
	for range 40 {
		l.Holds(plain-shape.SegmentBytes*2/3, 100)
	}
	if got, want := l.Model().Shape.SegmentTotalBytes(300), shape.SegmentTotalBytes(300)-shape.SegmentBytes*2/3; float64(got) < 0.98*float64(want) || float64(got) > 1.03*float64(want) {
		t.Errorf("a segment of 300 tokens takes %d bytes, want %d", got, want)
	}
}

func TestPricesThatNobodyConfirmsFade(t *testing.T) {
	l := New(newProfile(t), Priors{})
	prior := l.Model().Link(cost.JobLoadDisk).Millis(4 << 20)
	price := func() float64 { return l.Model().Link(cost.JobLoadDisk).Millis(4 << 20) }
	slow := func() { l.Did(cost.JobLoadDisk, 4<<20, 2*time.Second) }
	for range 40 {
		slow()
	}
	high := price()
	if high < 100*prior {
		t.Fatalf("%v ms, want a price that was measured", high)
	}
	now := time.Unix(1e9, 0)
	for range 60 { // used as it was: it stays
		now = now.Add(10 * time.Second)
		slow()
		l.Forget(now)
	}
	if price() < 0.9*high {
		t.Errorf("%v ms after %v, though it was measured again and again", price(), high)
	}
	for range 5 {
		l.Forget(now.Add(forgetAfter / 2))
	}
	if price() < 0.9*high {
		t.Errorf("%v ms after half a minute, want %v", price(), high)
	}
	for range 6 { // not used any more
		now = now.Add(forgetAfter)
		l.Forget(now)
	}
	if price() != prior {
		t.Errorf("%v ms when nobody measured it for minutes, want the prior's %v", price(), prior)
	}
	if l.Snapshot().Measured[cost.JobLoadDisk] {
		t.Error("a price that was forgotten counts as measured")
	}
	slow()
	if price() < 0.9*high {
		t.Errorf("%v ms after the one job that was as slow as ever, want %v", price(), high)
	}
}

// walks are walks of some sizes at so many milliseconds a row, from as many connections.
func walks(perRow float64, sources ...uint64) (list []cost.Sample) {
	for _, source := range sources {
		for i := range 20 {
			n := 100 + 40*i
			list = append(list, cost.Sample{Task: cost.TaskWalk, End: n, Millis: 2 + perRow*float64(n), Source: source})
		}
	}
	return list
}

func TestWalksAreLearntLikePrefills(t *testing.T) {
	l, now := New(newProfile(t), Priors{Prefill: cost.Prefill{Fixed: 1, PerToken: 0.1}}), time.Unix(1e9, 0)
	at := func() float64 { p, _ := l.Model().Task(cost.TaskWalk); return p.Millis(0, 500) }
	near := func(what string, want float64) {
		t.Helper()
		if got := at(); math.Abs(got-want) > 0.05*want {
			t.Errorf("%s: %.1f ms, want %.1f", what, got, want)
		}
	}
	near("before any", 100)
	before := l.Model().Prefill()
	if n := l.Measured(1, now, walks(0.4, 1), true); n != 20 {
		t.Errorf("%d taken", n)
	}
	near("measured", 202)
	if s := l.Snapshot(); !s.WalkMeasured || s.CaptureMeasured || s.PrefillMeasured || s.Samples != 0 || l.Model().Prefill() != before {
		t.Errorf("%+v", s)
	}
	l.Measured(1, now, walks(40, 2), true)
	near("two connections and the guess", 202)
	l.Measured(1, now, walks(0.4, 3), true)
	near("two of three connections", 202)
}

// A walk that was slow once is not done again, and would be slow for ever.
func TestSlowWalksAreForgotten(t *testing.T) {
	l, now := New(newProfile(t), Priors{Prefill: cost.Prefill{Fixed: 1, PerToken: 0.1}}), time.Unix(1e9, 0)
	measured := func() bool { _, ok := l.Model().Task(cost.TaskWalk); return ok }
	for _, c := range []struct {
		perRow float64
		after  time.Duration
		want   bool
	}{
		{4, walksAfter - 1, true}, {4, walksAfter, false}, {0.01, walksAfter, true},
	} {
		l.Measured(1, now, walks(c.perRow, 1), true)
		now = now.Add(c.after)
		l.Forget(now)
		if measured() != c.want {
			t.Errorf("%.2f ms a row, silent for %v: measured %v", c.perRow, c.after, !c.want)
		}
	}
}

// What one of several tenants says of walks must not stop the others from splicing: they would
// never measure anything that could outvote it.
func TestSlowWalksOfOneOfSeveralTenantsAreForThatOne(t *testing.T) {
	l, now := New(newProfile(t), Priors{Prefill: cost.Prefill{Fixed: 1, PerToken: 0.1}}), time.Unix(1e9, 0)
	check := func(when string, want ...float64) {
		t.Helper()
		for i, want := range want {
			if p, _ := l.For(tier.TenantID(i + 1)).Task(cost.TaskWalk); math.Abs(p.Millis(0, 500)-want) > 0.05*want {
				t.Errorf("%s: %.1f ms for tenant %d, want %.1f", when, p.Millis(0, 500), i+1, want)
			}
		}
	}
	check("before any", 100, 100, 100)
	l.Measured(1, now, walks(40, 1), false)
	check("one is slow", 20_000, 100, 100)
	if s := l.Snapshot(); s.WalkMeasured {
		t.Error("one tenant's walks count as measured for all")
	}
	l.Measured(2, now, walks(0.6, 2), false)
	check("a second has measured", 302, 302, 302)
	for range 3 {
		now = now.Add(walksAfter / 2)
		l.Measured(1, now, walks(40, 1), false)
		l.Forget(now)
	}
	check("the second is silent", 20_000, 100, 100)
	now = now.Add(walksAfter)
	l.Forget(now)
	check("both are silent", 100, 100, 100)
}

// A prefill may be fitted as a square alone; fast walks are held to a part of what it makes of them.
func TestWalksOfOneOfSeveralTenantsAreHeldToAGuessThatIsNotNothing(t *testing.T) {
	for _, c := range []struct{ perRow, least, most float64 }{{0.4, 150, 250}, {1e-4, 5, 25}} {
		l := New(newProfile(t), Priors{Prefill: cost.Prefill{Fixed: 1, PerTokenSquared: 1e-5}})
		l.Measured(1, time.Unix(1e9, 0), walks(c.perRow, 1), false)
		if p, measured := l.For(1).Task(cost.TaskWalk); !measured || p.Millis(0, 500) < c.least || p.Millis(0, 500) > c.most {
			t.Errorf("%.4f ms a row: %v, measured %v", c.perRow, p, measured)
		}
	}
}

// Most of a slow walk may be a fixed time, which a walk of thousands of rows hides.
func TestWalksOfAFixedTimeAreForgotten(t *testing.T) {
	l, now := New(newProfile(t), Priors{Prefill: cost.Prefill{Fixed: 1, PerToken: 0.1}}), time.Unix(1e9, 0)
	var list []cost.Sample
	for i := range 20 {
		list = append(list, cost.Sample{Task: cost.TaskWalk, End: 50 + 50*i, Millis: 250, Source: 1})
	}
	l.Measured(1, now, list, true)
	l.Forget(now.Add(walksAfter))
	if _, measured := l.Model().Task(cost.TaskWalk); measured {
		t.Error("still in force")
	}
}
