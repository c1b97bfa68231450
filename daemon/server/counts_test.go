package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

// What an operator watches for errors does not rise while all is well.
func TestAnswersThatAreNoErrorsAreNotCountedAsSuch(t *testing.T) {
	counts := newCounts()
	c := &conn{server: &Server{counts: counts}}
	for code := range wire.CodeCount {
		c.answered(wire.OpReserve, wire.Code(code))
		c.row(wire.OpReserve, wire.Code(code))
	}
	failures := map[string]uint64{}
	counts.EachFailure(func(code string, n uint64) { failures[code] = n })
	for code := range wire.CodeCount {
		want := uint64(2)
		switch wire.Code(code) {
		case wire.OK, wire.Miss, wire.Exists, wire.Canceled:
			want = 0
		}
		if got := failures[wire.Code(code).String()]; got != want {
			t.Errorf("%v is counted %d times as an error, want %d", wire.Code(code), got, want)
		}
	}
}

func TestTrialsAreCountedApartUpToTheirBound(t *testing.T) {
	counts := newCounts()
	c := &conn{server: &Server{counts: counts}}
	c.attached.Store(&attachment{trial: true})
	c.admitted()
	const all = maxTrialRequests + 36
	for range all {
		c.requests.Add(1)
		c.answered(wire.OpMatch, wire.Miss)
	}
	apart := uint64(0)
	counts.EachTrial(func(_ string, n uint64) { apart += n })
	var usual uint64
	counts.EachAnswer(func(_, _ string, n, _ uint64) { usual += n })
	if apart != maxTrialRequests || usual != all-maxTrialRequests || counts.Accepted.Load() != 0 || counts.TrialConnections() != 1 {
		t.Errorf("%d requests apart, %d as usual; %d connections accepted, %d of trials", apart, usual, counts.Accepted.Load(), counts.TrialConnections())
	}
}
