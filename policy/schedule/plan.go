package schedule

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
)

// Pool is the workers that a cold request may use and what work takes there, in
// milliseconds.
type Pool struct {
	Workers int
	Prefill cost.Prefill // one run over a segment or a piece of it; Fixed is what a cut adds

	HandOver         float64 // to bring the states of a left piece to the worker of the right one
	HandOverPerToken float64 // to bring its rows
	MinTokens        int     // shortest piece; 0 = 1
	GrainTokens      int     // cuts fall on multiples of it, such as the chunk of a kernel; 0 = 1

	Comm    float64 // to bring segments to the combine node, as far as computing does not hide it
	Combine float64 // to compose states and compute the seams again
}

// Piece is a part of a segment on a worker's list.
type Piece struct {
	Segment    int
	Begin, End int // tokens of the segment
	After      int // worker whose first piece it goes on from; -1 = it begins its segment
	Start      float64
	Finish     float64 // milliseconds after dispatch
}

// Plan is a list of pieces for each worker, in the order to run them.
type Plan struct {
	Workers  [][]Piece
	Makespan float64
	TTFT     float64
	Bound    float64 // no plan of these runs, cut or whole, has a smaller makespan
	Cuts     int     // segments in two pieces
}

// Serial is the time to first token of one instance that computes all tokens as
// one prompt.
func (p Pool) Serial(tokens []int) float64 {
	sum := 0
	for _, n := range tokens {
		sum += n
	}
	return p.Prefill.Millis(0, sum)
}

// LPT plans whole segments by the longest first.
func (p Pool) LPT(tokens []int) Plan {
	return p.ofAssignment(tokens, LPT(p.sizes(tokens), p.workers()))
}

// Whole plans whole segments, never worse than LPT.
func (p Pool) Whole(tokens []int) Plan {
	a, _ := Whole(p.sizes(tokens), p.workers())
	return p.ofAssignment(tokens, a)
}

// Best plans whole segments, or pieces where those end earlier.
func (p Pool) Best(tokens []int) Plan {
	whole := p.Whole(tokens)
	pieces, ok := p.cut(tokens, whole.Makespan)
	if !ok || pieces.Makespan >= whole.Makespan {
		return whole
	}
	return pieces
}

func (p Pool) workers() int { return max(p.Workers, 1) }

// sizes are whole microseconds, rounded up, so that sums are exact.
func (p Pool) sizes(tokens []int) []int64 {
	sizes := make([]int64, len(tokens))
	for i, n := range tokens {
		sizes[i] = int64(math.Ceil(p.Prefill.Millis(0, n) * 1e3))
	}
	return sizes
}

func (p Pool) ofAssignment(tokens []int, a Assignment) Plan {
	lists := make([][]Piece, p.workers())
	at := make([]float64, p.workers())
	for i, n := range tokens {
		if n <= 0 {
			continue
		}
		w := a.Worker[i]
		lists[w] = append(lists[w], Piece{Segment: i, End: n, After: -1, Start: at[w], Finish: at[w] + p.Prefill.Millis(0, n)})
		at[w] += p.Prefill.Millis(0, n)
	}
	return p.finish(tokens, lists)
}

func (p Pool) finish(tokens []int, lists [][]Piece) Plan {
	plan := Plan{Workers: lists, Bound: p.bound(tokens)}
	for _, list := range lists {
		for _, piece := range list {
			plan.Makespan = max(plan.Makespan, piece.Finish)
			if piece.After >= 0 {
				plan.Cuts++
			}
		}
	}
	plan.TTFT = plan.Makespan + p.Comm + p.Combine
	return plan
}

// bound is the mean load and the longest segment: pieces of one segment do not
// run side by side.
func (p Pool) bound(tokens []int) float64 {
	sum, longest := 0.0, 0.0
	for _, n := range tokens {
		ms := p.Prefill.Millis(0, n)
		sum += ms
		longest = max(longest, ms)
	}
	return max(longest, sum/float64(p.workers()))
}

// cut looks for the smallest end below limit by which McNaughton's rule places
// everything, for segments from long to short and as they come.
func (p Pool) cut(tokens []int, limit float64) (best Plan, found bool) {
	given := make([]int, 0, len(tokens))
	for i, n := range tokens {
		if n > 0 {
			given = append(given, i)
		}
	}
	long := slices.Clone(given)
	slices.SortStableFunc(long, func(a, b int) int { return tokens[b] - tokens[a] })
	for _, order := range [][]int{long, given} {
		low, high := p.bound(tokens), limit
		for range 40 { // to a trillionth of the limit
			end := (low + high) / 2
			lists, ok := p.wrap(tokens, order, end)
			if !ok {
				low = end
				continue
			}
			high = end
			if plan := p.finish(tokens, lists); !found || plan.Makespan < best.Makespan {
				best, found = plan, true
			}
		}
	}
	return best, found
}

// wrap fills one worker after the other up to end. What does not fit is cut: its
// right piece ends this worker's list, its left one begins the next worker's.
func (p Pool) wrap(tokens, order []int, end float64) ([][]Piece, bool) {
	lists := make([][]Piece, p.workers())
	w, at := 0, 0.0
	for _, i := range order {
		n := tokens[i]
		whole := p.Prefill.Millis(0, n)
		if whole > end {
			return nil, false
		}
		if at+whole <= end {
			lists[w] = append(lists[w], Piece{Segment: i, End: n, After: -1, Start: at, Finish: at + whole})
			at += whole
			continue
		}
		if w+1 == len(lists) {
			return nil, false
		}
		c, ok := p.cutAt(n, end-at, end)
		if !ok {
			lists[w+1] = []Piece{{Segment: i, End: n, After: -1, Finish: whole}}
			w, at = w+1, whole
			continue
		}
		left := p.Prefill.Millis(0, c)
		start := max(at, left+p.handOver(c))
		lists[w] = append(lists[w], Piece{Segment: i, Begin: c, End: n, After: w + 1, Start: start, Finish: start + p.Prefill.Millis(c, n)})
		lists[w+1] = []Piece{{Segment: i, End: c, After: -1, Finish: left}}
		w, at = w+1, left
	}
	return lists, true
}

func (p Pool) handOver(tokens int) float64 { return p.HandOver + p.HandOverPerToken*float64(tokens) }

// cutAt is the smallest cut of n tokens whose right piece takes at most room;
// false where a piece would be too short, or where the two in turn do not end in
// time.
func (p Pool) cutAt(n int, room, end float64) (int, bool) {
	least, grain := max(p.MinTokens, 1), max(p.GrainTokens, 1)
	low, high := least, n
	for low < high {
		c := (low + high) / 2
		if p.Prefill.Millis(c, n) <= room {
			high = c
		} else {
			low = c + 1
		}
	}
	c := (low + grain - 1) / grain * grain
	if n-c < least || p.Prefill.Millis(c, n) > room {
		return 0, false
	}
	return c, p.Prefill.Millis(0, c)+p.handOver(c)+p.Prefill.Millis(c, n) <= end
}
