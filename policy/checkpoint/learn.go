package checkpoint

import "slices"

// shareUnits is the resolution of shares: a share counts 1/shareUnits of a prompt's length.
const shareUnits = 1024

// laws has the three histograms, and the statistics that turn tails into depths.
type laws struct {
	block              int
	depth, share, tail *Histogram
	length             float64 // weighted mean of the lengths of hit prompts
	weight             float64 // sum of weights, up to 1/(1-γ)
	gamma              float64
}

func newLaws(block int, gamma float64) laws {
	return laws{block: block, gamma: gamma, depth: NewHistogram(gamma), share: NewHistogram(gamma), tail: NewHistogram(gamma)}
}

func (l *laws) add(h Hit) {
	l.depth.Add(h.Depth / l.block)
	l.share.Add(min(h.Depth*shareUnits/h.Length, shareUnits))
	l.tail.Add((h.Length-h.Depth+l.grain()-1)/l.grain() + 1) // + 1, because a Law has no depth zero
	l.weight = l.weight*l.gamma + 1
	l.length += (float64(h.Length) - l.length) / l.weight
}

// grain returns the resolution in tokens of the histogram tail. A tail is rounded up to a
// multiple of the resolution, so that a checkpoint is never after the shared tokens. Finer
// tails would gain little, because positions are rounded down to whole blocks later.
func (l *laws) grain() int { return max(1, l.block/8) }

// Problem is a snapshot of a Planner's statistics, to be solved off the hot
// path.
type Problem struct {
	laws   laws
	budget int
}

// Solution is a solved Problem. It is immutable.
type Solution struct {
	block              int
	depth, share, tail *Schedule
	reference          int // length in tokens for which tails were turned into depths
}

// Solve runs the dynamic program for each of the three histograms. That takes some
// milliseconds at a budget of 64, and less than one at a budget of 8.
func (p Problem) Solve() *Solution {
	l := &p.laws
	s := &Solution{block: l.block, reference: max(1, int(l.length))}
	s.depth = l.depth.Law().Solve(p.budget)
	s.share = l.share.Law().Solve(p.budget)
	s.tail = l.tailLaw(s.reference).Solve(p.budget)
	return s
}

// tailLaw turns the distances from the end that the histogram tail counts into depths in a
// prompt whose length is the parameter reference. It drops distances that are at least as
// long as this prompt. The length matters only for requests that end before the first
// checkpoint.
func (l *laws) tailLaw(reference int) Law {
	from := l.tail.Law()
	var to Law
	for i := range from.Depth {
		if depth := reference - (from.Depth[i]-1)*l.grain(); depth > 0 {
			to.Depth = append(to.Depth, depth)
			to.Weight = append(to.Weight, from.Weight[i])
		}
	}
	slices.Reverse(to.Depth)
	slices.Reverse(to.Weight)
	return to
}

func (s *Solution) byDepth(n, m int) []int {
	positions := s.depth.Place(n/s.block, m)
	for i := range positions {
		positions[i] *= s.block
	}
	return positions
}

func (s *Solution) byShare(n, m int) []int {
	positions := s.share.Place(shareUnits, m)
	for i := range positions {
		positions[i] = positions[i] * n / shareUnits
	}
	return Align(positions, s.block)
}

func (s *Solution) byTail(n, m int) []int {
	positions := s.tail.Place(s.reference, m)
	for i := range positions {
		positions[i] = max(0, n-(s.reference-positions[i]))
	}
	return Align(positions, s.block)
}
