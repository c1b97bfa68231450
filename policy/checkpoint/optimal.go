package checkpoint

import "sort"

// Law is a distribution of depths, in any unit. A depth is the number of tokens that a
// request shares with a cached prompt. The values of Depth ascend and are above zero. The
// values of Weight are not negative, and their sum may have any value.
type Law struct {
	Depth  []int
	Weight []float64
}

// Cost returns the weighted sum of the tokens to recompute. A request with a given depth
// recomputes the tokens from the deepest checkpoint within this depth up to the depth. The
// result is the paper's E[r(T; C)] times the sum of weights. Positions must ascend.
func (l Law) Cost(positions []int) float64 {
	at, next, cost := 0, 0, 0.0
	for i, depth := range l.Depth {
		for next < len(positions) && positions[next] <= depth {
			at = positions[next]
			next++
		}
		cost += l.Weight[i] * float64(depth-at)
	}
	return cost
}

// Optimal returns at most m positions with the least Cost, ascending. It returns fewer
// positions if more would save nothing.
func (l Law) Optimal(m int) []int {
	if len(l.Depth) == 0 {
		return nil
	}
	return l.Solve(m).Place(l.Depth[len(l.Depth)-1], m)
}

// Schedule is a solved law: the best positions for every budget up to the one
// it was solved for and for every length a prompt may have. It is immutable.
type Schedule struct {
	x []int
	// choice[m-1][j]-1 is the index in x of the last of m checkpoints for the j lowest depths.
	// If choice[m-1][j] is 0, m-1 checkpoints are as good.
	choice [][]int32
}

// Solve finds the best placements of 1 to m checkpoints in O(N·m) time and 4·N·m bytes,
// where N is the number of depths that have weight.
//
// Let x be the depths, p the weights, and P and T the prefix sums of p and p·x. dp[m][j] is
// the least cost of the first j depths with m checkpoints. The recurrence over the last
// checkpoint s (Theorem 2, for depths that need not be 1, 2, …) is
//
//	dp[0][j] = T[j]
//	dp[m][j] = min over s <= j of dp[m-1][s-1] + (T[j]-T[s-1]) - x[s]·(P[j]-P[s-1])
//
// For a given m, each s is a line in P[j] of slope -x[s]. Slopes fall with s and the
// queries P[j] rise with j, so the lower envelope is a queue that loses lines only at its
// ends. Only depths that have weight are candidates for a checkpoint: moving a checkpoint
// up to the next such depth makes no depth more expensive.
func (l Law) Solve(m int) *Schedule {
	s := newSolver(l)
	solved := &Schedule{x: s.x}
	for range min(m, len(s.x)) {
		solved.choice = append(solved.choice, s.layer())
	}
	return solved
}

// Place returns the best positions for at most m checkpoints, ascending. It considers only
// depths and positions up to limit.
func (s *Schedule) Place(limit, m int) []int {
	j := sort.SearchInts(s.x, limit+1)
	m = max(0, min(m, len(s.choice)))
	positions := make([]int, 0, m)
	for k := m - 1; k >= 0 && j > 0; k-- {
		if last := int(s.choice[k][j]); last > 0 {
			positions = append(positions, s.x[last-1])
			j = last - 1
		}
	}
	sort.Ints(positions)
	return positions
}

// solver holds two rows of the table dp. Their index j is a number of depths.
type solver struct {
	x        []int
	p, t     []float64 // prefix sums, from zero
	row, old []float64
	hull     []envelope
}

// envelope is the line offset - slope·P of a candidate for the last checkpoint; the field
// at is the candidate's index in x plus one.
type envelope struct {
	slope, offset float64
	at            int32
}

func newSolver(l Law) *solver {
	s := &solver{p: []float64{0}, t: []float64{0}}
	for i, depth := range l.Depth {
		if w := l.Weight[i]; w > 0 {
			s.x = append(s.x, depth)
			s.p = append(s.p, s.p[len(s.p)-1]+w)
			s.t = append(s.t, s.t[len(s.t)-1]+w*float64(depth))
		}
	}
	s.row = append([]float64(nil), s.t...)
	s.old = make([]float64, len(s.t))
	s.hull = make([]envelope, 0, len(s.t))
	return s
}

// layer computes the next row of dp, which allows one checkpoint more than the previous
// row. It returns the next element of Schedule.choice: the last checkpoint for each number
// of depths.
func (s *solver) layer() []int32 {
	choice := make([]int32, len(s.x)+1)
	s.row, s.old = s.old, s.row
	s.row[0] = 0
	hull, head := s.hull[:0], 0
	for j := 1; j <= len(s.x); j++ {
		slope := float64(s.x[j-1])
		line := envelope{slope, s.old[j-1] - s.t[j-1] + slope*s.p[j-1], int32(j)}
		for len(hull)-head >= 2 && !beneath(hull[len(hull)-2], hull[len(hull)-1], line) {
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, line)
		at := s.p[j]
		for len(hull)-head >= 2 && hull[head+1].value(at) <= hull[head].value(at) {
			head++
		}
		s.row[j], choice[j] = s.t[j]+hull[head].value(at), hull[head].at
		if s.old[j] <= s.row[j] {
			s.row[j], choice[j] = s.old[j], 0
		}
	}
	return choice
}

func (e envelope) value(at float64) float64 { return e.offset - e.slope*at }

// beneath reports whether line b is below both other lines at some point. The slopes ascend
// from a to c.
func beneath(a, b, c envelope) bool {
	return (b.offset-a.offset)*(c.slope-b.slope) < (c.offset-b.offset)*(b.slope-a.slope)
}
