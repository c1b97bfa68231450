package parallel

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
)

// What is settled stays so, and everything else may end.
func TestRowsSettleOnce(t *testing.T) {
	for s := range rowStates {
		for e := range rowEvents {
			to := rowMoves[s][e]
			if s.settled() && to != stays {
				t.Errorf("state %d is settled, and event %d leads to %d", s, e, to)
			}
			if !s.settled() && to != stays && to.settled() && progressOf[to] == 0 {
				t.Errorf("state %d is told to nobody", to)
			}
		}
		if !s.settled() && (rowMoves[s][failed] != aborted || rowMoves[s][timePassed] != tooLate) {
			t.Errorf("state %d does not end", s)
		}
	}
}

func TestJobsEndOnce(t *testing.T) {
	for _, s := range []jobState{finished, withdrawn} {
		for e := range jobEvents {
			if to := jobMoves[s][e]; to != s && to != never {
				t.Errorf("state %d is final, and event %d leads to %d", s, e, to)
			}
		}
	}
	for s := range finished {
		if jobMoves[s][ended] != finished || jobMoves[s][wasWithdrawn] != withdrawn {
			t.Errorf("state %d does not end", s)
		}
	}
}

// The plan is that of the paper's pool: whole segments where the engine that asks does no
// pieces, pieces where it does, nothing where others bring no gain.
func TestSpread(t *testing.T) {
	run := cost.Prefill{Fixed: 5, PerToken: 0.07, PerTokenSquared: 6.727e-7}
	s := spread{links: []link{{1, 2, 0.001}}, handOver: link{2, 2, 0.001}}
	for range 11 {
		s.tokens = append(s.tokens, 2400)
	}
	s.candidates = []candidate{{node: -1, prefill: run, queued: 1e6, local: true}}
	for i := range uint64(8) {
		s.candidates = append(s.candidates, candidate{node: 0, engine: i, prefill: run, pieces: true})
	}
	whole, _, ok := s.plan()
	if !ok || whole.Cuts != 0 || whole.Makespan < 353 || whole.Makespan > 355 {
		t.Errorf("whole: %v ms, %d cuts, %v", whole.Makespan, whole.Cuts, ok)
	}
	s.candidates[0].pieces = true
	pieces, _, ok := s.plan()
	if !ok || pieces.Cuts != 7 || pieces.Makespan > 1.05*pieces.Bound {
		t.Errorf("pieces: %v ms, bound %v, %d cuts, %v", pieces.Makespan, pieces.Bound, pieces.Cuts, ok)
	}
	s.candidates[0].queued = 0
	for i := range s.candidates[1:] {
		s.candidates[1+i].queued = 1e6
	}
	if _, _, ok := s.plan(); ok {
		t.Error("others that have no time are worth a plan")
	}
	if late := lateAfter(1000); late != 1500*time.Millisecond {
		t.Errorf("a row that is expected in a second is late after %v", late)
	}
	if late := lateAfter(10); late != 10*time.Millisecond+leastPatience {
		t.Errorf("a row that is expected at once is late after %v", late)
	}
}
