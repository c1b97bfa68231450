package schedule

import (
	"cmp"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
)

// cut searches for the earliest time by which all segments can arrive under McNaughton's
// rule. This time must be before the parameter limit. It tries two orders of the segments:
// from long to short, and as given. It fills first the worker that becomes free last, and
// ends with the worker that becomes free first. The left piece of a cut segment starts the
// list of the next worker, so it starts early.
func (t Team) cut(tokens []int, limit float64) (best Plan, found bool) {
	given := make([]int, 0, len(tokens))
	for i, n := range tokens {
		if n > 0 {
			given = append(given, i)
		}
	}
	workers := make([]int, len(t.Workers))
	for w := range workers {
		workers[w] = w
	}
	slices.SortStableFunc(workers, func(a, b int) int { return cmp.Compare(t.Workers[b].Queue, t.Workers[a].Queue) })
	long := slices.Clone(given)
	slices.SortStableFunc(long, func(a, b int) int { return tokens[b] - tokens[a] })
	for _, order := range [][]int{long, given} {
		low, high := t.bound(tokens), limit
		for range 40 { // narrows the range to a trillionth of the limit
			end := (low + high) / 2
			lists, ok := t.wrap(tokens, order, workers, end)
			if !ok {
				low = end
				continue
			}
			high = end
			if plan := t.finish(tokens, lists); !found || plan.TTFT < best.TTFT {
				best, found = plan, true
			}
		}
	}
	return best, found
}

// wrap fills one worker after the other. It gives a worker only segments that arrive at the
// combining node by the time end. A segment that does not fit is cut: its right piece ends
// this worker's list, and its left piece starts the next worker's list.
func (t Team) wrap(tokens, order, workers []int, end float64) ([][]Piece, bool) {
	lists := make([][]Piece, len(t.Workers))
	k := 0
	at := t.Workers[workers[0]].Queue
	for _, i := range order {
		for placed := false; !placed; {
			w, n := workers[k], tokens[i]
			worker := &t.Workers[w]
			until := end - worker.fetch(n)
			if whole := worker.Prefill.Millis(0, n); at+whole <= until {
				lists[w] = append(lists[w], Piece{Segment: i, End: n, After: -1, Start: at, Finish: at + whole})
				at, placed = at+whole, true
				continue
			}
			if k++; k == len(workers) {
				return nil, false
			}
			next := workers[k]
			left, right, ok := t.pieces(i, n, w, next, at, until)
			at = t.Workers[next].Queue
			if ok {
				lists[w], lists[next] = append(lists[w], right), []Piece{left}
				at, placed = left.Finish, true
			}
		}
	}
	return lists, true
}

// pieces cuts segment i, which has n tokens. The right piece goes to the end of worker w's
// list. The parameter at is the earliest time at which it may start, and the parameter
// until is the time by which it must end. The left piece goes to the start of the list of
// the worker next. pieces returns false if a piece would be too short, or if the right
// piece, which follows the left one, would end too late.
func (t Team) pieces(i, n, w, next int, at, until float64) (left, right Piece, ok bool) {
	here, there := &t.Workers[w], &t.Workers[next]
	if !here.Pieces || !there.Pieces {
		return left, right, false
	}
	c, ok := t.cutAt(n, &here.Prefill, until-at)
	if !ok {
		return left, right, false
	}
	left = Piece{Segment: i, End: c, After: -1, Start: there.Queue, Finish: there.Queue + there.Prefill.Millis(0, c)}
	start := max(at, left.Finish+t.handOver(c))
	right = Piece{Segment: i, Begin: c, End: n, After: next, Start: start, Finish: start + here.Prefill.Millis(c, n)}
	return left, right, right.Finish <= until
}

// cutAt returns the lowest position at which to cut a segment of n tokens so that its right
// piece takes at most as many milliseconds as the parameter room says. It returns false if
// a piece would be too short.
func (c Cutting) cutAt(n int, run *cost.Prefill, room float64) (int, bool) {
	least, grain := max(c.MinTokens, 1), max(c.GrainTokens, 1)
	low, high := least, n
	for low < high {
		at := (low + high) / 2
		if run.Millis(at, n) <= room {
			high = at
		} else {
			low = at + 1
		}
	}
	at := (low + grain - 1) / grain * grain
	return at, n-at >= least && run.Millis(at, n) <= room
}
