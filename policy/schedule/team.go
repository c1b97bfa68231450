package schedule

import (
	"cmp"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
)

// Worker is an engine that may compute segments. Times are in milliseconds.
type Worker struct {
	Prefill cost.Prefill // one run over a segment or a piece of it
	Queue   float64      // from now until its other work is done
	// Times to transfer a segment to the combining node; 0 for an engine of that node.
	// Fetch is the delay until the first byte. FetchEach and FetchPerToken are the time
	// that the transfer occupies that node's link.
	Fetch, FetchEach, FetchPerToken float64
	Pieces                          bool // the worker can compute and publish single pieces
}

// Team is the set of workers that a cold request may use. They need not be equal. The zero
// value has no workers.
type Team struct {
	Workers []Worker
	Cutting
}

func (w *Worker) fetch(tokens int) float64 { return w.Fetch + w.inbound(tokens) }

func (w *Worker) inbound(tokens int) float64 { return w.FetchEach + w.FetchPerToken*float64(tokens) }

// Alone returns the milliseconds after which worker 0 would have computed all segments, one
// after the other.
func (t Team) Alone(tokens []int) float64 {
	at := t.Workers[0].Queue
	for _, n := range tokens {
		at += t.Workers[0].Prefill.Millis(0, n)
	}
	return at
}

// Best plans whole segments, or pieces if those arrive earlier. It uses worker 0 and those
// of the fastest other workers that help. The plan's TTFT is the arrival of the last
// segment at the combining node.
func (t Team) Best(tokens []int) Plan { return t.best(tokens, Team.cutOrWhole) }

// Whole plans like Best, but without pieces.
func (t Team) Whole(tokens []int) Plan { return t.best(tokens, Team.whole) }

// best tries worker 0 with the 0, 1, 2, 4, ... fastest other workers, and with all. If all
// workers are equal, it plans for all of them only.
func (t Team) best(tokens []int, plan func(Team, []int) Plan) Plan {
	if len(t.Workers) == 0 {
		return Plan{}
	}
	if t.alike() {
		return plan(t, tokens)
	}
	order := t.soonest(tokens)
	var best Plan
	for n := 0; ; n = min(max(2*n, 1), len(order)) {
		some := append([]int{0}, order[:n]...)
		slices.Sort(some)
		if p := plan(t.only(some), tokens); n == 0 || p.TTFT < best.TTFT {
			best = p.renumber(some, len(t.Workers))
		}
		if n == len(order) {
			return best
		}
	}
}

func (t Team) alike() bool {
	return !slices.ContainsFunc(t.Workers, func(w Worker) bool { return w != t.Workers[0] })
}

// soonest returns all workers except 0, ordered by the time at which a segment of mean
// length would arrive from each.
func (t Team) soonest(tokens []int) []int {
	mean := 0
	for _, n := range tokens {
		mean += n / len(tokens)
	}
	order := make([]int, 0, len(t.Workers))
	for w := 1; w < len(t.Workers); w++ {
		order = append(order, w)
	}
	here := func(w int) float64 {
		return t.Workers[w].Queue + t.Workers[w].Prefill.Millis(0, mean) + t.Workers[w].fetch(mean)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(here(a), here(b)) })
	return order
}

func (t Team) only(some []int) Team {
	list := make([]Worker, len(some))
	for i, w := range some {
		list[i] = t.Workers[w]
	}
	return Team{Workers: list, Cutting: t.Cutting}
}

// renumber turns a plan for the workers in the list some into a plan for all workers.
func (p Plan) renumber(some []int, all int) Plan {
	lists := make([][]Piece, all)
	for i, list := range p.Workers {
		for k := range list {
			if list[k].After >= 0 {
				list[k].After = some[list[k].After]
			}
		}
		lists[some[i]] = list
	}
	p.Workers = lists
	return p
}

func (t Team) cutOrWhole(tokens []int) Plan {
	whole := t.whole(tokens)
	if pieces, ok := t.cut(tokens, whole.TTFT); ok && pieces.TTFT < whole.TTFT {
		return pieces
	}
	return whole
}

// whole assigns whole segments. For equal workers it uses the function Whole. For workers
// that differ, it assigns the longest segment first, each to the worker from which it
// arrives first. Exchanges then improve the result.
func (t Team) whole(tokens []int) Plan {
	if t.alike() {
		a, _ := Whole(t.sizes(tokens), len(t.Workers))
		return t.ofAssignment(tokens, a)
	}
	j := t.listed(tokens)
	j.exchange()
	return t.ofAssignment(tokens, Assignment{Worker: j.worker})
}

// sizes returns the time of each segment on worker 0, in whole microseconds and rounded up,
// so that sums are exact.
func (t Team) sizes(tokens []int) []int64 {
	sizes := make([]int64, len(tokens))
	for i, n := range tokens {
		sizes[i] = int64(math.Ceil(t.Workers[0].Prefill.Millis(0, n) * 1e3))
	}
	return sizes
}

// ofAssignment turns an assignment into a plan. Each worker computes its segments in the
// order of the request.
func (t Team) ofAssignment(tokens []int, a Assignment) Plan {
	lists := make([][]Piece, len(t.Workers))
	at := make([]float64, len(t.Workers))
	for w := range at {
		at[w] = t.Workers[w].Queue
	}
	for i, n := range tokens {
		if n <= 0 {
			continue
		}
		w := a.Worker[i]
		finish := at[w] + t.Workers[w].Prefill.Millis(0, n)
		lists[w] = append(lists[w], Piece{Segment: i, End: n, After: -1, Start: at[w], Finish: finish})
		at[w] = finish
	}
	return t.finish(tokens, lists)
}

func (t Team) finish(tokens []int, lists [][]Piece) Plan {
	plan := Plan{Workers: lists, Bound: t.bound(tokens), Arrive: t.arrive(tokens, lists)}
	for _, list := range lists {
		for _, piece := range list {
			plan.Makespan = max(plan.Makespan, piece.Finish)
			if piece.After >= 0 {
				plan.Cuts++
			}
		}
	}
	for _, at := range plan.Arrive {
		plan.TTFT = max(plan.TTFT, at)
	}
	return plan
}

// arrive returns the arrival of each segment at the combining node. This node has one link,
// so it fetches segments one after another, in the order of publication.
func (t Team) arrive(tokens []int, lists [][]Piece) []float64 {
	type done struct {
		segment, worker int
		at              float64
	}
	var all []done
	for w, list := range lists {
		for _, p := range list {
			if p.End == tokens[p.Segment] {
				all = append(all, done{p.Segment, w, p.Finish})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b done) int { return cmp.Compare(a.at, b.at) })
	arrive, free := make([]float64, len(tokens)), 0.0
	for _, d := range all {
		w := &t.Workers[d.worker]
		if w.Fetch+w.FetchEach+w.FetchPerToken == 0 {
			arrive[d.segment] = d.at
			continue
		}
		free = max(free, d.at) + w.inbound(tokens[d.segment])
		arrive[d.segment] = free + w.Fetch
	}
	return arrive
}

// bound returns a lower bound of the makespan: the longest segment after the shortest
// queue, or the earliest time by which the workers together can have computed all segments,
// whichever is later. The time of the longest segment is a bound because pieces of one
// segment do not run at the same time. Both bounds assume a worker that has the best values
// of all workers.
func (t Team) bound(tokens []int) float64 {
	queues := make([]float64, len(t.Workers))
	best := t.Workers[0].Prefill
	for i := range t.Workers {
		p := &t.Workers[i].Prefill
		queues[i] = t.Workers[i].Queue
		best = cost.Prefill{
			Fixed: min(best.Fixed, p.Fixed), PerToken: min(best.PerToken, p.PerToken), PerTokenSquared: min(best.PerTokenSquared, p.PerTokenSquared),
		}
	}
	slices.Sort(queues)
	sum, longest := 0.0, 0.0
	for _, n := range tokens {
		ms := best.Millis(0, n)
		sum, longest = sum+ms, max(longest, ms)
	}
	if sum == 0 {
		return 0
	}
	end, used := math.Inf(1), 0.0
	for i, q := range queues { // if only the first i+1 workers work until end
		used += q
		end = min(end, max(q, (sum+used)/float64(i+1)))
	}
	return max(queues[0]+longest, end)
}
