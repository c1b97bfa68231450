package connector

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestServedCarriesHowAPromptWasServed(t *testing.T) {
	f, _, m := opened(t)
	asked := make(chan wire.ServedRequest, 1)
	f.on(wire.OpServed, func(r *request) {
		asked <- *decode[wire.ServedRequest](r)
		r.reply(&wire.ServedReply{Number: 12})
	})
	key := profile.SegmentKey{3}
	number, err := m.Served(background, &Served{
		Way: wire.WaySplice, Tokens: 100, Engine: 10, Prefix: 20, PrefixTier: wire.TierDRAM, PrefixReason: wire.ReasonEvicted,
		Segments: []ServedSegment{{Begin: 30, Tokens: 40, At: 34, Reused: 32, Key: key, Tier: wire.TierDisk}, {Begin: 70, Tokens: 20, Reason: wire.ReasonUnknown}},
		Bytes:    1 << 33, Match: 300 * time.Microsecond, Wait: time.Nanosecond, First: 3 * time.Hour, WayMicros: []float64{9, math.Inf(1)},
		Request: "cmpl-1", Trace: "00-a",
	})
	if err != nil || number != 12 {
		t.Fatal(number, err)
	}
	want := wire.ServedRequest{
		Profile: 7, Way: wire.WaySplice, Tokens: 100, Engine: 10, Prefix: 20, PrefixTier: wire.TierDRAM, PrefixReason: wire.ReasonEvicted,
		ReadBytes: 1 << 33, MatchMicros: 300, WaitMicros: 1, FirstMicros: math.MaxUint32, WayMicros: []float64{9, math.Inf(1)},
		Begins: []uint32{30, 70}, Counts: []uint32{40, 20}, At: []uint32{34, 0}, Reused: []uint32{32, 0}, Tiers: []uint8{wire.TierDisk, 0},
		Reasons: []uint8{0, wire.ReasonUnknown}, Keys: [][32]byte{key, {}}, Request: "cmpl-1", Trace: "00-a",
	}
	if got := <-asked; !reflect.DeepEqual(got, want) {
		t.Errorf("sent %+v, want %+v", got, want)
	}
	for _, bad := range []Served{
		{Tokens: -1}, {Tokens: 1, Prefix: -1}, {Tokens: 1, Bytes: -1}, {Tokens: 1, Request: strings.Repeat("x", wire.MaxName+1)},
		{Tokens: 1, Segments: []ServedSegment{{Tokens: 1, Reused: -1}}}, {Tokens: 1, Segments: make([]ServedSegment, wire.MaxKeys+1)},
		{Tokens: 1, WayMicros: make([]float64, wire.MaxWays+1)},
	} {
		if _, err := m.Served(background, &bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d tokens, %d segments: %v", bad.Tokens, len(bad.Segments), err)
		}
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d bad ones were sent", n)
	}
}
