package cost

import (
	"math"
	"testing"
)

func TestChooseTiesGoToTheExactAndSimple(t *testing.T) {
	free := New(Options{Prefill: Prefill{PerToken: 1}})
	for j := range jobs {
		free.SetLink(j, Link{})
	}
	prefix, buffer := Prefix{Tokens: 500, Tier: TierHBM}, Buffer{Tokens: 500, Tier: TierHBM}
	segments := []Segment{{Begin: 0, Tokens: 500, Tier: TierHBM}}
	for _, c := range []struct {
		name string
		r    Request
		want Way
	}{
		{"all alike", Request{Tokens: 1000, Prefix: prefix, Buffer: buffer, Segments: segments}, WayPrefix},
		{"buffer and splice", Request{Tokens: 1000, Buffer: buffer, Segments: segments}, WayReplay},
		{"nothing held", Request{Tokens: 1000}, WayRecompute},
		{"a splice that gains nothing", Request{Tokens: 1000, Segments: []Segment{{Tokens: 500, SeamTokens: 500, Tier: TierHBM}}}, WayRecompute},
		{"a splice", Request{Tokens: 1000, Segments: segments}, WaySplice},
		{"a splice where only exact states are taken", Request{Tokens: 1000, Segments: segments, ExactOnly: true}, WayRecompute},
		{"held nowhere", Request{Tokens: 1000, Prefix: Prefix{Tokens: 500}, Buffer: Buffer{Tokens: 500}, Segments: []Segment{{Tokens: 500}}}, WayRecompute},
	} {
		if got := free.Choose(c.r); got.Best != c.want {
			t.Errorf("%s: %s, want %s; %v", c.name, got.Best, c.want, got.Millis)
		}
	}
}

func TestChooseAddsUp(t *testing.T) {
	m := model()
	const mib = 1 << 20
	c := m.Choose(Request{
		Tokens: 3000,
		Prefix: Prefix{Tokens: 1000, Bytes: 2 * mib, Tier: TierDRAM},
		Buffer: Buffer{Tokens: 1100, Bytes: 3 * mib, RebuildBytes: mib, Tier: TierDRAM},
		Segments: []Segment{
			{Begin: 500, Tokens: 400, StateBytes: mib, RowBytes: mib, Tier: TierDRAM}, // the prefix has it
			{Begin: 1000, Tokens: 1000, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDRAM},
			{Begin: 2100, Tokens: 800, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDisk},
		},
	})
	near(t, "recompute", c.Of(WayRecompute), 10+300, 1e-9)
	near(t, "prefix", c.Of(WayPrefix), 0.2+10+200, 1e-9)
	near(t, "replay", c.Of(WayReplay), 0.3+2+10+190, 1e-9)
	// Walked: 8 + 108+8 tokens, beside a claim, two loads, compositions, rotations; 108 behind them are computed.
	near(t, "splice", c.Of(WaySplice), 0.2+10+6.4+0.2*(8+116)+0.1*108+(0.2+2+1)+(3+2+1), 1e-9)
	if c.Best != WaySplice || !math.IsInf(c.Of(0), 1) || !math.IsInf(c.Of(9), 1) {
		t.Errorf("best %s", c.Best)
	}
}

// What is known of a source counts in place of its tier's measure, and only where it is held.
func TestChooseTakesTheLinkThatIsGiven(t *testing.T) {
	m := model()
	const mib = 1 << 20
	slow := Link{Fixed: 50, PerByte: 1.0 / mib}
	r := Request{
		Tokens: 3000, Prefix: Prefix{Tokens: 1000, Bytes: 2 * mib, Tier: TierPeer, From: slow},
		Segments: []Segment{{Begin: 1000, Tokens: 1000, StateBytes: mib, RowBytes: mib, Tier: TierPeer, From: slow}},
	}
	c := m.Choose(r)
	near(t, "prefix", c.Of(WayPrefix), 52+10+200, 1e-9)
	near(t, "splice", c.Of(WaySplice), 52+10+6.4+52+(2+1)+100, 1e-9)
	r.Prefix.Tier, r.Segments[0].Tier = TierNone, TierNone
	if c = m.Choose(r); c.Best != WayRecompute || !math.IsInf(c.Of(WayPrefix), 1) || !math.IsInf(c.Of(WaySplice), 1) {
		t.Errorf("held nowhere: %v", c)
	}
}

func TestTheLastTokenIsAlwaysComputed(t *testing.T) {
	m := model()
	prefix := m.Choose(Request{Tokens: 1000, Prefix: Prefix{Tokens: 1000, Tier: TierHBM}, Buffer: Buffer{Tokens: 1200, Tier: TierHBM}})
	near(t, "prefix", prefix.Of(WayPrefix), 10+0.1, 1e-9)
	near(t, "replay", prefix.Of(WayReplay), 2+10+0.1, 1e-9)
	segment := m.Choose(Request{Tokens: 1000, Segments: []Segment{{Tokens: 1000, Tier: TierHBM}}})
	near(t, "splice", segment.Of(WaySplice), 10+6.4+0.1+1, 1e-9)
}

// walked is a model whose walks take 5 ms and 0.3 ms a row, captures 1 ms and 0.5 ms a token.
func walked() *Model {
	m := model()
	m.SetTask(TaskWalk, Prefill{Fixed: 5, PerToken: 0.3})
	m.SetTask(TaskCapture, Prefill{Fixed: 1, PerToken: 0.5})
	return m
}

func TestMeasuredWalksPriceASplice(t *testing.T) {
	const mib = 1 << 20
	r := Request{Tokens: 3000, Segments: []Segment{
		{Begin: 0, Tokens: 1016, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDRAM},
		{Begin: 1100, Tokens: 1616, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDisk},
	}}
	// Walked: 8 and 8+84+8 rows, 2,600 placed ones are 163 more. Reading memory is in what was measured, the disk is not.
	want := 10 + 6.4 + 5 + 0.3*(108+163) + 3 + 0.1*(3000-2708)
	c := walked().Choose(r)
	near(t, "splice", c.Of(WaySplice), want, 1e-9)
	if c.Best != WaySplice || c.Segments != 2 {
		t.Errorf("%s of %d segments", c.Best, c.Segments)
	}
	slow := walked()
	slow.SetTask(TaskWalk, Prefill{PerToken: 3})
	if c = slow.Choose(r); c.Best != WayRecompute {
		t.Errorf("%s by %v", c.Best, c.Millis)
	}
}

func TestASpliceEndsWhereItIsCheapest(t *testing.T) {
	m := walked()
	near := []Segment{{Begin: 0, Tokens: 500, Tier: TierDRAM}, {Begin: 500, Tokens: 500, Tier: TierDRAM}}
	for _, c := range []struct {
		name string
		more []Segment
		want int
	}{
		{"a run of missing tokens", []Segment{{Begin: 2000, Tokens: 400, Tier: TierDRAM}}, 2},
		{"a run that enough stands behind", []Segment{{Begin: 2000, Tokens: 4000, Tier: TierDRAM}}, 3},
		{"rows of missing segments", []Segment{{Begin: 1000}, {Begin: 1010, Tokens: 500, Tier: TierDRAM}}, 4},
	} {
		if got := m.Choose(Request{Tokens: 8000, Segments: append(near[:2:2], c.more...)}); got.Segments != c.want {
			t.Errorf("%s: %d segments, want %d", c.name, got.Segments, c.want)
		}
	}
}

// A capture pays for itself with later requests: it is in the prediction and does not decide.
func TestCapturesArePredictedAndDoNotDecide(t *testing.T) {
	m := walked()
	r := Request{Tokens: 3000, Segments: []Segment{{Begin: 0, Tokens: 2000, Tier: TierDRAM}}}
	held := m.Choose(r)
	r.Segments[0].Capture, r.Segments[0].Tier = true, TierNone
	captured := m.Choose(r)
	near(t, "capture", captured.Of(WaySplice)-held.Of(WaySplice), 1+0.5*2000, 1e-9)
	if captured.Best != WaySplice || captured.Of(WaySplice) < captured.Of(WayRecompute) {
		t.Errorf("%s by %v", captured.Best, captured.Millis)
	}
}

func TestUnmeasuredTasksAreGuessesByThePrefill(t *testing.T) {
	m := model()
	for _, c := range []struct {
		task Task
		want float64
	}{{TaskWalk, 200}, {TaskCapture, 12 + 120}} {
		p, measured := m.Task(c.task)
		near(t, c.task.String(), p.Millis(0, 1000), c.want, 1e-9)
		if measured {
			t.Errorf("%s: measured", c.task)
		}
	}
	square := New(Options{Prefill: Prefill{PerTokenSquared: 1e-5}})
	if p, _ := square.Task(TaskWalk); p.PerToken <= 0 {
		t.Errorf("a walk takes nothing where a prefill grows by the square: %v", p)
	}
	if p, measured := walked().Task(TaskWalk); !measured || p.Fixed != 5 {
		t.Errorf("%v, measured %v", p, measured)
	}
}
