package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestAdviceThatTakesLongIsAJob(t *testing.T) {
	columns := func(n int) []uint32 { return make([]uint32, n) }
	for _, row := range []struct {
		name string
		m    wire.AdviseRequest
		long bool
	}{
		{"usual", wire.AdviseRequest{Tokens: longAdvise, Cuts: columns(longChoice), MaxCheckpoints: longChoice}, false},
		{"tokens", wire.AdviseRequest{Tokens: longAdvise + 1}, true},
		{"cuts", wire.AdviseRequest{Tokens: 100, Cuts: columns(longChoice + 1)}, true},
		{"checkpoints", wire.AdviseRequest{Tokens: 100, MaxCheckpoints: 1<<32 - 1}, true},
		{"segments", wire.AdviseRequest{
			Tokens: 100, SegmentBegin: columns(longChoice + 1), SegmentTokens: columns(longChoice + 1),
			SegmentStatus: make([]uint8, longChoice+1), SegmentTier: make([]uint8, longChoice+1),
		}, true},
	} {
		body := row.m.Append(nil)
		if got, err := operations[wire.OpAdvise].long(&task{scratch: &scratch{}, body: body}); err != nil || got != row.long {
			t.Errorf("%s: long %v, %v", row.name, got, err)
		}
	}
}

func TestNumbersThatNoPromptHasAreCut(t *testing.T) {
	if profile.MaxTokens > cut(1<<32-1) {
		t.Error("cut lets a length through")
	}
}
