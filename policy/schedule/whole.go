package schedule

import (
	"cmp"
	"slices"
)

// Assignment gives every job to a worker.
type Assignment struct {
	Worker []int   // of each job
	Load   []int64 // of each worker, in the unit of the jobs
}

// Makespan is the largest load.
func (a Assignment) Makespan() int64 {
	if len(a.Load) == 0 {
		return 0
	}
	return slices.Max(a.Load)
}

// jobs has the sizes of the jobs and the order in which they are assigned: longest first,
// equal jobs as given.
type jobs struct {
	size  []int64
	order []int
}

func sorted(size []int64) jobs {
	j := jobs{size: size, order: make([]int, len(size))}
	for i := range j.order {
		j.order[i] = i
	}
	slices.SortStableFunc(j.order, func(a, b int) int { return cmp.Compare(size[b], size[a]) })
	return j
}

// LPT assigns jobs to workers, the longest job first. Each goes to the worker with the
// smallest load; ties go to the lower index. Sizes must not be negative. A number of
// workers below one counts as one.
func LPT(size []int64, workers int) Assignment { return sorted(size).lpt(max(workers, 1)) }

func (j jobs) lpt(workers int) Assignment {
	a := Assignment{Worker: make([]int, len(j.size)), Load: make([]int64, workers)}
	for _, job := range j.order {
		w := 0
		for i, load := range a.Load {
			if load < a.Load[w] {
				w = i
			}
		}
		a.Worker[job] = w
		a.Load[w] += j.size[job]
	}
	return a
}

// LowerBound returns a lower bound of the makespan of whole jobs on m workers. It is the
// maximum of the mean load, the longest job and, for every k, the sum of the k+1 smallest
// among the k·m+1 longest jobs. That sum is a bound because one worker gets at least k+1 of
// these jobs.
func LowerBound(size []int64, workers int) int64 {
	workers = max(workers, 1)
	j := sorted(size)
	bound := fractional(size, workers)
	for k := 1; k*workers < len(size); k++ {
		sum := int64(0)
		for i := k*workers - k; i <= k*workers; i++ {
			sum += size[j.order[i]]
		}
		bound = max(bound, sum)
	}
	return bound
}

// fractional returns the lower bound that also holds if jobs may be cut.
func fractional(size []int64, workers int) int64 {
	sum, longest := int64(0), int64(0)
	for _, s := range size {
		sum += s
		longest = max(longest, s)
	}
	return max(longest, (sum+int64(workers)-1)/int64(workers))
}

// Whole assigns whole jobs at least as well as LPT. It stops when the makespan reaches the
// lower bound. The second result reports whether the assignment is known to be optimal.
func Whole(size []int64, workers int) (a Assignment, proven bool) {
	workers = max(workers, 1)
	j, bound := sorted(size), LowerBound(size, workers)
	best := j.lpt(workers)
	for _, improve := range []func() Assignment{
		func() Assignment { return j.multifit(workers, bound, best.Makespan()) },
		func() Assignment { return j.exchange(best) },
	} {
		if best.Makespan() == bound {
			return best, true
		}
		if other := improve(); other.Makespan() < best.Makespan() {
			best = other
		}
	}
	if best.Makespan() == bound {
		return best, true
	}
	return j.search(best, bound)
}

// multifit searches for the smallest capacity at which first-fit-decreasing needs no more
// than the given number of workers (Coffman, Garey and Johnson: at most 13/11 of the
// optimum).
func (j jobs) multifit(workers int, low, high int64) Assignment {
	best := j.lpt(workers)
	for low < high {
		capacity := low + (high-low)/2
		if a, ok := j.firstFit(workers, capacity); ok {
			best, high = a, min(capacity, a.Makespan())
		} else {
			low = capacity + 1
		}
	}
	return best
}

func (j jobs) firstFit(workers int, capacity int64) (Assignment, bool) {
	a := Assignment{Worker: make([]int, len(j.size)), Load: make([]int64, workers)}
	for _, job := range j.order {
		w := slices.IndexFunc(a.Load, func(load int64) bool { return load+j.size[job] <= capacity })
		if w < 0 {
			return a, false
		}
		a.Worker[job] = w
		a.Load[w] += j.size[job]
	}
	return a, true
}

// exchange moves a job away from the worker with the largest load, or swaps it for a
// smaller job of another worker, as long as that lowers the larger of the two loads. Every
// step lowers the sum of squared loads and looks at up to jobs² pairs. exchangeWork bounds
// the pairs of all steps together.
func (j jobs) exchange(from Assignment) Assignment {
	a := Assignment{Worker: slices.Clone(from.Worker), Load: slices.Clone(from.Load)}
	for range 1 + exchangeWork/(1+len(j.size)*len(j.size)) {
		full := slices.Index(a.Load, a.Makespan())
		if !j.relieve(&a, full) {
			break
		}
	}
	return a
}

const exchangeWork = 10_000_000

// relieve does one step of exchange, and returns false if there is none.
func (j jobs) relieve(a *Assignment, full int) bool {
	for x, w := range a.Worker {
		if w != full {
			continue
		}
		for to := range a.Load {
			if to != full && a.Load[to]+j.size[x] < a.Load[full] {
				a.move(x, to, j.size[x])
				return true
			}
		}
		for y, other := range a.Worker {
			if gain := j.size[x] - j.size[y]; other != full && gain > 0 && a.Load[other]+gain < a.Load[full] {
				a.move(x, other, j.size[x])
				a.move(y, full, j.size[y])
				return true
			}
		}
	}
	return false
}

func (a *Assignment) move(job, to int, size int64) {
	a.Load[a.Worker[job]] -= size
	a.Load[to] += size
	a.Worker[job] = to
}
