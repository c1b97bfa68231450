package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/socket"
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

// Who calls itself doctor is counted as any other, and among trials as well.
func TestTrialsAreCountedWithAllOthers(t *testing.T) {
	counts := newCounts()
	c := &conn{server: &Server{counts: counts}}
	c.attached.Store(&attachment{trial: true})
	c.admitted()
	const all = 100
	for range all {
		c.answered(wire.OpMatch, wire.Invalid)
	}
	trials, usual, failed := uint64(0), uint64(0), uint64(0)
	counts.EachTrial(func(_ string, n uint64) { trials += n })
	counts.EachAnswer(func(_, _ string, n, _ uint64) { usual += n })
	counts.EachFailure(func(_ string, n uint64) { failed += n })
	if trials != all || usual != all || failed != all || counts.Accepted.Load() != 1 || counts.TrialConnections() != 1 {
		t.Errorf("%d requests of trials, %d of all, %d of them failed; %d connections accepted, %d of trials", trials, usual, failed, counts.Accepted.Load(), counts.TrialConnections())
	}
}

// Connections of one process have one vote, and of one that has no number here one each.
func TestVotesAreThoseOfProcesses(t *testing.T) {
	of := func(id uint64, uid uint32, pid int32) uint64 {
		return (&conn{id: id, peer: socket.Peer{UID: uid, PID: pid}}).process()
	}
	if of(1, 1000, 7) != of(2, 1000, 7) {
		t.Error("connections of one process are two")
	}
	seen := map[uint64]bool{}
	for _, v := range []uint64{of(1, 1000, 7), of(1, 1000, 8), of(1, 0, 7), of(1, 1000, 0), of(2, 1000, 0), of(7, 0, 0)} {
		seen[v] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d of 6 processes differ", len(seen))
	}
}
