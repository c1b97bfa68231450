package schedule

import "slices"

// searchWork bounds the exact search to some ten milliseconds. It is divided by workers²,
// the most that one node of the search costs. With up to about 16 jobs on 8 workers the
// search ends before this bound.
const searchWork = 16_000_000

// search tries all assignments depth first, taking the jobs in order, and skips branches
// that cannot improve on the best assignment so far. It returns the best assignment and
// whether this is the optimum.
func (j jobs) search(best Assignment, bound int64) (Assignment, bool) {
	s := searching{
		jobs: j, best: best, limit: best.Makespan(), bound: bound, nodes: max(1000, searchWork/(len(best.Load)*len(best.Load))),
		now: Assignment{Worker: make([]int, len(j.size)), Load: make([]int64, len(best.Load))},
	}
	for _, size := range j.size {
		s.rest += size
	}
	s.from(0)
	return s.best, s.nodes > 0 || s.limit == bound
}

type searching struct {
	jobs
	best, now    Assignment
	limit, bound int64 // makespan of best, and the least possible makespan
	rest         int64 // total size of the jobs not yet assigned
	nodes        int   // nodes of the search still allowed
}

func (s *searching) from(i int) {
	if i == len(s.order) {
		s.best = Assignment{Worker: slices.Clone(s.now.Worker), Load: slices.Clone(s.now.Load)}
		s.limit = s.best.Makespan()
		return
	}
	if s.nodes--; s.nodes <= 0 || !s.hopeful() {
		return
	}
	job := s.order[i]
	size := s.size[job]
	s.rest -= size
	for w, load := range s.now.Load {
		// An earlier worker with the same load leads to equivalent plans.
		if load+size >= s.limit || slices.Contains(s.now.Load[:w], load) {
			continue
		}
		s.now.Load[w] += size
		s.now.Worker[job] = w
		s.from(i + 1)
		s.now.Load[w] = load
		if s.limit == s.bound || s.nodes <= 0 {
			break
		}
	}
	s.rest += size
}

// hopeful reports whether the remaining jobs could lead to a makespan below the limit, if
// they filled every worker evenly.
func (s *searching) hopeful() bool {
	room := int64(0)
	for _, load := range s.now.Load {
		room += s.limit - 1 - load
	}
	return s.rest <= room
}
