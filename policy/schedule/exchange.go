package schedule

import (
	"cmp"
	"math"
	"slices"
)

// listing is an assignment of whole segments to workers that differ.
type listing struct {
	team   Team
	tokens []int
	order  []int // longest first
	worker []int // the worker of each segment
}

// exchanges bounds the number of improvements of a listing. Each looks at all pairs of
// segments.
const exchanges = 64

// listed assigns segments to workers, the longest segment first. Each goes to the worker
// from which it would arrive first; ties go to the lower index.
func (t Team) listed(tokens []int) *listing {
	j := &listing{team: t, tokens: tokens, order: make([]int, len(tokens)), worker: make([]int, len(tokens))}
	for i := range j.order {
		j.order[i], j.worker[i] = i, -1
	}
	slices.SortStableFunc(j.order, func(a, b int) int { return cmp.Compare(tokens[b], tokens[a]) })
	at := make([]float64, len(t.Workers))
	for w := range at {
		at[w] = t.Workers[w].Queue
	}
	for _, i := range j.order {
		best, here := 0, math.Inf(1)
		for w := range at {
			if ms := at[w] + t.Workers[w].Prefill.Millis(0, tokens[i]) + t.Workers[w].fetch(tokens[i]); ms < here {
				best, here = w, ms
			}
		}
		j.worker[i] = best
		at[best] += t.Workers[best].Prefill.Millis(0, tokens[i])
	}
	return j
}

// load describes the list of one worker: ms is the time of its queue and runs in
// milliseconds, and the field last is the list's last segment in the order of the request
// (-1 = none).
type load struct {
	ms   float64
	last int
}

func (j *listing) loads() []load {
	loads := make([]load, len(j.team.Workers))
	for w := range loads {
		loads[w] = load{j.team.Workers[w].Queue, -1}
	}
	for i, w := range j.worker {
		if j.tokens[i] > 0 {
			loads[w].ms += j.team.Workers[w].Prefill.Millis(0, j.tokens[i])
			loads[w].last = i
		}
	}
	return loads
}

// end returns the time at which the last segment of worker w arrives if the list of the
// worker changes: the segment number without is removed, and the segment number with is
// added (-1 = none).
func (j *listing) end(w int, l load, without, with int) float64 {
	worker := &j.team.Workers[w]
	if without >= 0 {
		l.ms -= worker.Prefill.Millis(0, j.tokens[without])
		for l.last >= 0 && (l.last == without || j.worker[l.last] != w || j.tokens[l.last] <= 0) {
			l.last--
		}
	}
	if with >= 0 {
		l.ms += worker.Prefill.Millis(0, j.tokens[with])
		l.last = max(l.last, with)
	}
	if l.last < 0 {
		return 0
	}
	return l.ms + worker.fetch(j.tokens[l.last])
}

// exchange looks at the worker whose segments arrive last. It moves a segment from this
// worker to another, or swaps two segments, as long as that lowers the later of the two
// workers' ends.
func (j *listing) exchange() {
	for range exchanges {
		loads, full, latest := j.loads(), 0, 0.0
		for w := range loads {
			if end := j.end(w, loads[w], -1, -1); end > latest {
				full, latest = w, end
			}
		}
		if !j.relieve(full, latest, loads) {
			return
		}
	}
}

// relieve does one step of exchange, and returns false if there is none.
func (j *listing) relieve(full int, latest float64, loads []load) bool {
	for x, w := range j.worker {
		if w != full || j.tokens[x] <= 0 {
			continue
		}
		for to := range loads {
			if to != full && max(j.end(to, loads[to], -1, x), j.end(full, loads[full], x, -1)) < latest {
				j.worker[x] = to
				return true
			}
		}
		for y, other := range j.worker {
			if other != full && max(j.end(other, loads[other], y, x), j.end(full, loads[full], x, y)) < latest {
				j.worker[x], j.worker[y] = other, full
				return true
			}
		}
	}
	return false
}
