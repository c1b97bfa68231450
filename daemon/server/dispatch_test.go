package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

func TestEveryOperationIsServed(t *testing.T) {
	for op := range wire.Op(wire.OpCount) {
		if served := operations[op].run != nil || op == wire.OpCancel; served != op.Known() {
			t.Errorf("%v: known to the protocol %v, served %v", op, op.Known(), served)
		}
	}
}

// Requests of a few hundred rows are answered by their reader, up to and including the
// documented number, whatever else their bodies have; a job costs a copy and a hand-over.
func TestRequestsOfFewRowsAreNoJobs(t *testing.T) {
	sections := wire.MatchRequest{
		Prompt: wire.MatchPrompt{Present: true, Tokens: 1}, Known: wire.MatchKnownQuery{Present: true, Begin: 1},
		Positions: make([]uint32, 64), Prefixes: make([][32]byte, 64), Keys: make([][32]byte, 192),
	}
	many := make([]uint32, longChoice+1)
	for name, test := range map[string]struct {
		op   wire.Op
		body wire.Message
		long bool
	}{
		"match of 256 keys":            {wire.OpMatch, &wire.MatchRequest{Keys: make([][32]byte, 256)}, false},
		"match of 256 prefixes":        {wire.OpMatch, &wire.MatchRequest{Positions: make([]uint32, 256), Prefixes: make([][32]byte, 256)}, false},
		"match of both, with sections": {wire.OpMatch, &sections, false},
		"match of 300 prefixes":        {wire.OpMatch, &wire.MatchRequest{Positions: make([]uint32, 300), Prefixes: make([][32]byte, 300)}, true},
		"acquire of 256 keys":          {wire.OpAcquire, &wire.AcquireRequest{Keys: make([][32]byte, 256)}, false},
		"acquire of 300 keys":          {wire.OpAcquire, &wire.AcquireRequest{Keys: make([][32]byte, 300)}, true},
		"release of 256 leases":        {wire.OpRelease, &wire.ReleaseRequest{Leases: make([]uint64, 256)}, false},
		"release of 300 leases":        {wire.OpRelease, &wire.ReleaseRequest{Leases: make([]uint64, 300)}, true},
		"abort of 256 reservations":    {wire.OpAbort, &wire.AbortRequest{Reservations: make([]uint64, 256)}, false},
		"save of 32 checkpoints":       {wire.OpSave, &wire.SaveRequest{Hashes: make([][32]byte, 32), Tokens: make([]uint32, 32), Parents: make([][32]byte, 32)}, false},
		"save of 40 checkpoints":       {wire.OpSave, &wire.SaveRequest{Hashes: make([][32]byte, 40), Tokens: make([]uint32, 40), Parents: make([][32]byte, 40)}, true},
		"advice on a usual prompt":     {wire.OpAdvise, &wire.AdviseRequest{Tokens: longAdvise, Cuts: many[1:], MaxCheckpoints: longChoice}, false},
		"advice on a long prompt":      {wire.OpAdvise, &wire.AdviseRequest{Tokens: longAdvise + 1}, true},
		"advice on many cuts":          {wire.OpAdvise, &wire.AdviseRequest{Tokens: 100, Cuts: many}, true},
		"advice on many checkpoints":   {wire.OpAdvise, &wire.AdviseRequest{Tokens: 100, MaxCheckpoints: 1<<32 - 1}, true},
		"advice on many segments": {wire.OpAdvise, &wire.AdviseRequest{
			Tokens: 100, SegmentBegin: many, SegmentTokens: many, SegmentStatus: make([]uint8, len(many)), SegmentTier: make([]uint8, len(many)),
		}, true},
		"save out of a buffer": {wire.OpSave, &wire.SaveRequest{Buffered: wire.SaveBuffered{Present: true}}, true},
	} {
		long, err := operations[test.op].long(&task{body: test.body.Append(nil), at: &attachment{features: wire.FeatureBuffered}, scratch: &scratch{}})
		if err != nil || long != test.long {
			t.Errorf("%s: long %v, %v; want %v", name, long, err, test.long)
		}
	}
}
