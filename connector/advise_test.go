package connector

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

func tokensUpTo(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i * 3)
	}
	return ids
}

// goodAdvice is for a prompt of 100 tokens with two segments.
func goodAdvice() *wire.AdviseReply {
	return &wire.AdviseReply{
		SeenTokens: 64, Way: wire.WayPrefix, WayMicros: []float64{5000, 1250.5, math.Inf(1), math.Inf(1)},
		Positions: []uint32{64, 96}, Why: []uint8{wire.WhyBranch, wire.WhyLast}, Admit: []uint8{1, 0},
		Reason: []uint8{wire.AdviceSeen, wire.AdviceCold}, Value: []float64{2.5, 0.25},
		SegmentAdmit: []uint8{1, 0}, SegmentReason: []uint8{wire.AdviceReturning, wire.AdviceNone},
	}
}

func TestAdviseCarriesQueryAndAnswer(t *testing.T) {
	f := startFake(t)
	c := open(t, f)
	m := register(t, c, Binding{BlockTokens: 32})
	asked := make(chan *wire.AdviseRequest, 1)
	staged := make(chan []uint32, 1)
	staging := f.map_(f.staging, false)
	f.on(wire.OpAdvise, func(r *request) {
		r.body = append([]byte(nil), r.body...)
		q := decode[wire.AdviseRequest](r)
		var ids []uint32
		for i := range q.Tokens {
			ids = append(ids, binary.LittleEndian.Uint32(staging[q.TokenOff+4*uint64(i):]))
		}
		q.TokenOff = 0
		asked <- q
		staged <- ids
		r.reply(goodAdvice())
	})
	q := &AdviseQuery{
		Tokens: tokensUpTo(100), Output: 4, Record: true, MaxCheckpoints: 2, BufferTokens: 70, SeamTokens: 8,
		Found: &Found{PrefixTokens: 32, PrefixTier: wire.TierDisk, Segments: []SegmentFound{{}, {Status: wire.StatusHit, Tier: wire.TierDRAM}}},
		Cuts:  []int{32, 64}, Segments: []SegmentSpan{{32, 32}, {64, 30}},
		Samples: []Sample{{0, 100, 3 * time.Millisecond}, {50, 50, time.Second}, {0, 10, 0}},
	}
	a, err := m.Advise(background, q)
	must(t, err)
	if !slices.Equal(<-staged, q.Tokens) {
		t.Error("other token ids in staging")
	}
	want := wire.AdviseRequest{
		Profile: 7, Record: 1, BlockTokens: 32, MaxCheckpoints: 2, Tokens: 100, Output: 4, PrefixTokens: 32, PrefixTier: wire.TierDisk,
		BufferTokens: 70, SeamTokens: 8, Cuts: []uint32{32, 64}, SegmentBegin: []uint32{32, 64}, SegmentTokens: []uint32{32, 30},
		SegmentStatus: []uint8{0, wire.StatusHit}, SegmentTier: []uint8{0, wire.TierDRAM},
		SampleBegin: []uint32{0}, SampleEnd: []uint32{100}, SampleMicros: []uint32{3000},
	}
	if got := *<-asked; !reflect.DeepEqual(got, want) {
		t.Errorf("asked\n%+v, want\n%+v", got, want)
	}
	answer := Advice{
		SeenTokens: 64, Way: wire.WayPrefix, Predicted: []time.Duration{5 * time.Millisecond, 1250500, -1, -1},
		Checkpoints: []CheckpointAdvice{
			{Tokens: 64, Save: true, Why: wire.WhyBranch, Reason: wire.AdviceSeen, Value: 2.5},
			{Tokens: 96, Why: wire.WhyLast, Reason: wire.AdviceCold, Value: 0.25},
		},
		Segments: []SegmentAdvice{{Publish: true, Reason: wire.AdviceReturning}, {}},
	}
	if !reflect.DeepEqual(a, answer) {
		t.Errorf("answered\n%+v, want\n%+v", a, answer)
	}
	if n := c.Counters(); n.Advised != 1 || n.Unadvised != 0 {
		t.Errorf("%+v", n)
	}
}

func TestAdviseChecksItsArguments(t *testing.T) {
	f, _, m := opened(t)
	for name, q := range map[string]*AdviseQuery{
		"nothing":            {},
		"output":             {Tokens: tokensUpTo(3), Output: 4},
		"buffer":             {Tokens: tokensUpTo(3), BufferTokens: 4},
		"seams":              {Tokens: tokensUpTo(3), SeamTokens: -1},
		"block":              {Tokens: tokensUpTo(3), BlockTokens: -1},
		"checkpoints":        {Tokens: tokensUpTo(3), MaxCheckpoints: wire.MaxPositions + 1},
		"cuts":               {Tokens: tokensUpTo(3), Cuts: make([]int, wire.MaxKeys+1)},
		"cut":                {Tokens: tokensUpTo(3), Cuts: []int{4}},
		"segment":            {Tokens: tokensUpTo(3), Segments: []SegmentSpan{{2, 2}}},
		"empty segment":      {Tokens: tokensUpTo(3), Segments: []SegmentSpan{{2, 0}}},
		"prefix":             {Tokens: tokensUpTo(3), Found: &Found{PrefixTokens: 4}},
		"segments not found": {Tokens: tokensUpTo(3), Found: &Found{Segments: make([]SegmentFound, 2)}, Segments: []SegmentSpan{{0, 1}}},
	} {
		if a, err := m.Advise(background, q); !errors.Is(err, ErrInvalid) || !reflect.DeepEqual(a, Advice{}) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if n := f.count(wire.OpAdvise); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestNoDaemonIsNoAdvice: one that is away, stalled, older or broken costs a
// bounded wait, and nothing is to be stored.
func TestNoDaemonIsNoAdvice(t *testing.T) {
	leakFree(t)
	f := newFake(t)
	c := open(t, f, func(o *Options) { o.Timeouts.Lookup = 500 * time.Millisecond })
	m := register(t, c, Binding{})
	q := &AdviseQuery{Tokens: tokensUpTo(100), Record: true}
	none := func(what string, want error) {
		t.Helper()
		within(t, 500*time.Millisecond, func() {
			if a, err := m.Advise(background, q); !errors.Is(err, want) || !reflect.DeepEqual(a, Advice{}) {
				t.Errorf("%s: %+v, %v", what, a, err)
			}
		})
	}
	none("away", ErrUnavailable)
	f.start()
	waitReady(t, m)
	f.on(wire.OpAdvise, refuse(wire.Unsupported, "advise"))
	none("older", ErrUnsupported)
	release := f.hold(wire.OpAdvise)
	none("stalled", ErrLate)
	f.await(wire.OpAdvise)
	release()
	answeredAgain(t, m)
	if n := c.Counters(); n.Unadvised != 3 || n.Advised != 0 || n.Lost != 0 {
		t.Errorf("%+v", n)
	}
}

// TestAdviceThatMakesNoSenseEndsTheConnection: an engine would save the state of
// other tokens, or read rows that are not there.
func TestAdviceThatMakesNoSenseEndsTheConnection(t *testing.T) {
	for name, spoil := range map[string]func(*wire.AdviseReply){
		"seen too much":     func(a *wire.AdviseReply) { a.SeenTokens = 101 },
		"no way":            func(a *wire.AdviseReply) { a.Way = 0 },
		"way without time":  func(a *wire.AdviseReply) { a.Way = 5 },
		"position 0":        func(a *wire.AdviseReply) { a.Positions[0] = 0 },
		"descending":        func(a *wire.AdviseReply) { a.Positions[1] = 64 },
		"beyond the prompt": func(a *wire.AdviseReply) { a.Positions[1] = 101 },
		"a segment less":    func(a *wire.AdviseReply) { a.SegmentAdmit, a.SegmentReason = a.SegmentAdmit[:1], a.SegmentReason[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			f, c, m := opened(t)
			f.on(wire.OpAdvise, func(r *request) {
				a := goodAdvice()
				spoil(a)
				r.reply(a)
			})
			q := &AdviseQuery{Tokens: tokensUpTo(100), Segments: []SegmentSpan{{0, 10}, {10, 10}}}
			if a, err := m.Advise(background, q); !errors.Is(err, ErrUnavailable) || !reflect.DeepEqual(a, Advice{}) {
				t.Errorf("%+v, %v", a, err)
			}
			if n := c.Counters(); n.Malformed != 1 || n.Unadvised != 1 {
				t.Errorf("%+v", n)
			}
		})
	}
}

func TestAPromptBeyondStagingGetsNoAdvice(t *testing.T) {
	_, _, m := opened(t)
	a, err := m.Advise(background, &AdviseQuery{Tokens: make([]uint32, min(fakeStaging, profile.MaxTokens))})
	if err == nil || !reflect.DeepEqual(a, Advice{}) {
		t.Errorf("%+v, %v", a, err)
	}
}
