package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
)

func randomTeam(rng *rand.Rand) Team {
	t := Team{Cutting: Cutting{HandOver: float64(rng.IntN(40)), HandOverPerToken: 0.01, MinTokens: rng.IntN(300), GrainTokens: 1 + rng.IntN(64)}}
	for w := range 1 + rng.IntN(6) {
		speed := 0.5 + rng.Float64()
		x := Worker{
			Prefill: cost.Prefill{Fixed: float64(rng.IntN(10)), PerToken: 0.05 * speed, PerTokenSquared: 1e-6 * speed},
			Queue:   float64(rng.IntN(3) * rng.IntN(100)), Pieces: rng.IntN(3) > 0,
		}
		if w > 0 {
			x.Fetch, x.FetchEach, x.FetchPerToken = float64(rng.IntN(10)), float64(rng.IntN(5)), 0.002*float64(rng.IntN(5))
		}
		t.Workers = append(t.Workers, x)
	}
	return t
}

func TestTeamsCoverEverySegmentAndEndNoLaterThanAlone(t *testing.T) {
	cuts, alone := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		team, tokens := randomTeam(rng), make([]int, 1+rng.IntN(9))
		for i := range tokens {
			tokens[i] = 1 + rng.IntN(4000)
		}
		whole, best := team.Whole(tokens), team.Best(tokens)
		for _, p := range []Plan{whole, best} {
			checkTeam(t, team, tokens, p)
		}
		if whole.TTFT > team.Alone(tokens)+1e-3 || best.TTFT > whole.TTFT+1e-9 {
			t.Fatalf("seed %d: best %v, whole %v, alone %v", seed, best.TTFT, whole.TTFT, team.Alone(tokens))
		}
		if !slices.ContainsFunc(best.Workers[1:], func(l []Piece) bool { return len(l) > 0 }) {
			alone++
		}
		cuts += best.Cuts
	}
	if cuts < 50 || alone < 10 {
		t.Errorf("%d cuts, %d plans of one worker", cuts, alone)
	}
}

// checkTeam runs a plan and compares with what it says.
func checkTeam(t *testing.T, team Team, tokens []int, plan Plan) {
	t.Helper()
	covered := make([]int, len(tokens))
	for w, list := range plan.Workers {
		at := team.Workers[w].Queue
		for _, p := range list {
			took := team.Workers[w].Prefill.Millis(p.Begin, p.End)
			if p.Start < at-1e-9 || math.Abs(p.Finish-p.Start-took) > 1e-6 {
				t.Fatalf("worker %d: %+v starts before %v or does not take %v", w, p, at, took)
			}
			at = p.Finish
			covered[p.Segment] += p.End - p.Begin
			if p.After < 0 {
				continue
			}
			left := plan.Workers[p.After][0]
			if left.Segment != p.Segment || left.End != p.Begin || p.Start < left.Finish+team.handOver(left.End)-1e-9 {
				t.Fatalf("%+v goes on from %+v", p, left)
			}
			if !team.Workers[w].Pieces || !team.Workers[p.After].Pieces {
				t.Fatalf("worker %d or %d does no pieces: %+v", w, p.After, p)
			}
		}
		if at > plan.Makespan+1e-9 && len(list) > 0 {
			t.Fatalf("worker %d ends at %v, makespan %v", w, at, plan.Makespan)
		}
	}
	if !slices.Equal(covered, tokens) {
		t.Fatalf("covered %v, want %v", covered, tokens)
	}
	if plan.Makespan < plan.Bound-1e-6 || plan.TTFT != slices.Max(plan.Arrive) || plan.TTFT < plan.Makespan-1e-9 {
		t.Fatalf("makespan %v, bound %v, together at %v", plan.Makespan, plan.Bound, plan.TTFT)
	}
}

func TestWholeSegmentsOnUnlikeWorkersAreNearTheOptimum(t *testing.T) {
	worst := 1.0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 11))
		team, tokens := randomTeam(rng), make([]int, 1+rng.IntN(6))
		team.Workers = team.Workers[:min(len(team.Workers), 3)]
		for i := range tokens {
			tokens[i] = 1 + rng.IntN(4000)
		}
		optimum := math.Inf(1)
		n := len(team.Workers)
		for code := range int(math.Pow(float64(n), float64(len(tokens)))) {
			a := Assignment{Worker: make([]int, len(tokens))}
			for i, rest := 0, code; i < len(tokens); i, rest = i+1, rest/n {
				a.Worker[i] = rest % n
			}
			optimum = min(optimum, team.ofAssignment(tokens, a).TTFT)
		}
		worst = max(worst, team.Whole(tokens).TTFT/optimum)
	}
	t.Logf("at most %.3f of the optimum", worst)
	if worst > 4./3 {
		t.Errorf("%.3f of the optimum", worst)
	}
}

func TestWhatBringingCosts(t *testing.T) {
	run := cost.Prefill{PerToken: 0.1}
	two := func(fetch, queue float64) Team {
		return Team{Workers: []Worker{{Prefill: run}, {Prefill: run, Fetch: fetch, Queue: queue}}}
	}
	for _, c := range []struct {
		name         string
		fetch, queue float64
		here         int // segments on worker 0
	}{{"free", 0, 0, 2}, {"as long as a segment", 120, 0, 3}, {"longer than all", 500, 0, 4}, {"queue as long as a segment", 10, 100, 3}, {"long queue", 10, 1000, 4}} {
		plan := two(c.fetch, c.queue).Best([]int{1000, 1000, 1000, 1000})
		if got := len(plan.Workers[0]); got != c.here {
			t.Errorf("%s: %d of 4 segments on worker 0, want %d: %+v", c.name, got, c.here, plan)
		}
	}
	slow := two(1, 0)
	slow.Workers[1].FetchPerToken = 0.2 // one way in: bringing takes longer than computing
	if plan := slow.Best([]int{1000, 1000, 1000, 1000}); len(plan.Workers[1]) > 1 {
		t.Errorf("%d segments behind a slow way: %+v", len(plan.Workers[1]), plan)
	}
}
