package connector

import (
	"os"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(fakeProcess); path != "" {
		serveFake(path)
	}
	os.Exit(m.Run())
}

func TestMatchDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget")
	}
	f := startFake(t)
	// The fake allocates; this answer does not.
	var q wire.MatchRequest
	reply := wire.MatchReply{Status: slices.Repeat([]uint8{wire.StatusHit}, 32), Tier: make([]uint8, 32), Reason: make([]uint8, 32), Tokens: make([]uint32, 32)}
	out := make([]byte, 0, wire.MaxFrame)
	f.on(wire.OpMatch, func(r *request) {
		if q.Decode(r.body) != nil {
			return
		}
		h := wire.Header{Kind: wire.Reply, Op: r.h.Op, Request: r.h.Request, Epoch: f.epoch}
		out, _ = wire.AppendFrame(out[:0], &h, &reply)
		r.send(out)
	})
	m := register(t, open(t, f), Binding{})
	var found Found
	query := MatchQuery{Keys: make([]profile.SegmentKey, 32)}
	n := testing.AllocsPerRun(200, func() {
		must(t, m.Match(background, &query, &found))
	})
	// One is what the fake allocates per request.
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}
