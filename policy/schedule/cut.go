package schedule

import (
	"cmp"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
)

// cut searches the smallest end below limit for which McNaughton's rule places
// everything, with segments from long to short and in the given order, on
// workers from the one that is free last to the one that is free first. Left
// pieces start there.
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
		for range 40 { // to a trillionth of the limit
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

// wrap fills one worker after the other up to the last time at which its
// segment can still arrive by end. A segment that does not fit is cut: its
// right piece ends this worker's list, its left piece starts the next one's.
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

// pieces cuts segment i of n tokens between the end of w's list, which is free
// from at and has to end by until, and the start of next's. It returns false if
// a piece would be too short, or if the two pieces in sequence do not end in
// time.
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

// cutAt returns the smallest cut of n tokens whose right piece takes at most
// room; false if a piece would be too short.
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
