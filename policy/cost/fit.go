package cost

import (
	"math"
	"math/bits"
	"slices"
)

// Sample is one measured run: a prefill of tokens [Begin, End), or a walk or capture of End
// rows, for which Begin is 0.
type Sample struct {
	Task       Task
	Begin, End int
	Millis     float64
	Source     uint64 // engine that measured it, for a Panel
}

// Fit learns a Prefill from samples. The zero value has DefaultPrefill as its
// prior.
//
// Fit keeps the last few samples of each class of sizes, so that a long run of short prompts
// does not displace the long ones. It weighs samples by age. It minimizes the sum of weighted
// relative errors, not of their squares, over non-negative coefficients. So a third of the
// samples may be stalls or false values without doing much harm. Errors beyond a factor of two
// count by their logarithm. The prior is scaled to the samples and has a small weight.
//
// Invariant: at most fitClasses²·fitKeep samples are kept.
type Fit struct {
	prior   Prefill
	fitted  Prefill
	held    []timed
	at      map[[2]uint8][]int // class -> indices into held, oldest first
	seen    int
	refitAt int
}

type timed struct {
	Sample
	seq int
}

// Samples are in one class if two numbers are equal after rounding down to a power of four:
// the computed tokens and the end position. Each class keeps its last fitKeep samples. A
// sample's weight falls by a factor e with every fitMemory later samples, down to fitFloor.
const (
	fitClasses = 12
	fitKeep    = 8
	fitMemory  = 100.0
	fitFloor   = 0.05
	fitRounds  = 12    // iterations of the method solve
	priorPull  = 0.005 // weight of each row of the prior
	fitStep    = 8.0   // largest ratio of a sample to its prediction, see Add
	fitLeast   = 1e-6  // milliseconds: no computer is faster, and squares of its inverse are finite
)

// NewFit starts from a prior; the zero Prefill stands for DefaultPrefill.
func NewFit(prior Prefill) *Fit { return &Fit{prior: prior} }

// Add adds a sample, and returns false for an invalid sample, which it ignores. After every
// len(held)/8 samples it computes the coefficients again, which takes some 100 µs. A sample
// far from the prediction is clamped to a factor of fitStep, so that a few absurd samples have
// little effect. Many absurd samples do have an effect: the sources of the samples decide the
// prediction.
func (f *Fit) Add(s Sample) bool {
	if s.Begin < 0 || s.End <= s.Begin || s.End > math.MaxInt32 || !(s.Millis >= fitLeast) || math.IsInf(s.Millis, 1) {
		return false
	}
	if f.seen >= fitKeep {
		p := f.fitted.Millis(s.Begin, s.End)
		s.Millis = min(max(s.Millis, p/fitStep), p*fitStep)
	}
	f.keep(timed{Sample: s, seq: f.seen})
	f.seen++
	if f.seen >= f.refitAt {
		f.fitted = f.solve()
		f.refitAt = f.seen + max(1, len(f.held)/8)
	}
	return true
}

// Prefill returns the current prediction, which is the prior if there are no samples.
func (f *Fit) Prefill() Prefill {
	if f.seen == 0 {
		return f.base()
	}
	return f.fitted
}

// Samples returns the number of samples added.
func (f *Fit) Samples() int { return f.seen }

func (f *Fit) base() Prefill {
	if f.prior.IsZero() {
		return DefaultPrefill
	}
	return f.prior
}

func classOf(tokens int) uint8 {
	return uint8(min((bits.Len(uint(tokens))-1)/2, fitClasses-1))
}

func (f *Fit) keep(s timed) {
	if f.at == nil {
		f.at = map[[2]uint8][]int{}
	}
	class := [2]uint8{classOf(s.End - s.Begin), classOf(s.End)}
	places := f.at[class]
	if len(places) < fitKeep {
		f.at[class] = append(places, len(f.held))
		f.held = append(f.held, s)
		return
	}
	oldest := places[0]
	copy(places, places[1:])
	places[fitKeep-1] = oldest
	f.held[oldest] = s
}

// row is one weighted equation. Its features are divided by the measured milliseconds, so that
// a perfect prediction gives one.
type row struct {
	x [3]float64
	w float64
}

func (f *Fit) rows(scaled Prefill) []row {
	rows := make([]row, 0, len(f.held)+4)
	for i := range f.held {
		s := &f.held[i]
		age := float64(f.seen - 1 - s.seq)
		rows = append(rows, row{features(s.Begin, s.End, s.Millis), max(fitFloor, math.Exp(-age/fitMemory))})
	}
	for _, n := range []int{64, 1 << 10, 1 << 14, 1 << 18} {
		rows = append(rows, row{features(0, n, scaled.Millis(0, n)), priorPull})
	}
	return rows
}

func features(begin, end int, millis float64) [3]float64 {
	b, e := float64(begin), float64(end)
	return [3]float64{1 / millis, (e - b) / millis, (e*e - b*b) / millis}
}

// solve minimizes the sum of absolute errors by iteratively reweighted least
// squares.
func (f *Fit) solve() Prefill {
	scaled := f.base().scaled(f.medianRatio())
	rows := f.rows(scaled)
	theta := [3]float64{scaled.Fixed, scaled.PerToken, scaled.PerTokenSquared}
	for range fitRounds {
		var n normal
		for _, r := range rows {
			predicted := r.x[0]*theta[0] + r.x[1]*theta[1] + r.x[2]*theta[2]
			n.add(r.x, r.w/max(math.Abs(predicted-1), 1e-3)/farOff(predicted))
		}
		theta = n.nonNegative()
	}
	return Prefill{Fixed: theta[0], PerToken: theta[1], PerTokenSquared: theta[2]}
}

// farOff returns a divisor for the error of a prediction, which is given relative to the
// measured time. If the prediction is off by more than a factor of two, the divided error
// counts like its logarithm. Without this divisor, one sample that is far too short would
// outweigh all other samples: its own relative error may be a million, while samples predicted
// far too short have a relative error of at most one.
func farOff(predicted float64) float64 {
	return max(predicted/2, min(1, max(2*predicted, 1e-3)))
}

// medianRatio returns the median of measured over predicted by the prior.
func (f *Fit) medianRatio() float64 {
	ratios := make([]float64, len(f.held))
	for i := range f.held {
		ratios[i] = f.held[i].Millis / f.base().Millis(f.held[i].Begin, f.held[i].End)
	}
	slices.Sort(ratios)
	return (ratios[(len(ratios)-1)/2] + ratios[len(ratios)/2]) / 2
}

func finitePositive(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// normal holds the normal equations of a least-squares problem with three unknowns. The right
// side is one in every row.
type normal struct {
	a [3][3]float64
	b [3]float64
}

func (n *normal) add(x [3]float64, w float64) {
	for i := range 3 {
		for j := range 3 {
			n.a[i][j] += w * x[i] * x[j]
		}
		n.b[i] += w * x[i]
	}
}

// nonNegative minimizes over theta >= 0. It tries every set of unknowns that may be above
// zero. The problem is convex, so the best feasible solution is the minimum.
func (n *normal) nonNegative() (best [3]float64) {
	lowest := 0.0
	for set := 1; set < 8; set++ {
		theta, ok := n.solve(set)
		if !ok || min(theta[0], theta[1], theta[2]) < 0 {
			continue
		}
		value := 0.0
		for i := range 3 {
			for j := range 3 {
				value += theta[i] * n.a[i][j] * theta[j]
			}
			value -= 2 * n.b[i] * theta[i]
		}
		if value < lowest {
			best, lowest = theta, value
		}
	}
	return best
}

// solve does Gaussian elimination over the unknowns of set. The columns differ
// by ten orders of magnitude, so each is scaled by its own diagonal first.
func (n *normal) solve(set int) (theta [3]float64, ok bool) {
	var m [3][4]float64
	var scale [3]float64
	for i := range 3 {
		if set>>i&1 == 0 || n.a[i][i] <= 0 {
			m[i][i] = 1
			scale[i] = 0
			continue
		}
		scale[i] = 1 / math.Sqrt(n.a[i][i])
	}
	for i := range 3 {
		if scale[i] == 0 {
			continue
		}
		for j := range 3 {
			m[i][j] = n.a[i][j] * scale[i] * scale[j]
		}
		m[i][3] = n.b[i] * scale[i]
	}
	for i := range 3 {
		if m[i][i] < 1e-12 { // positive semidefinite: the diagonal is the pivot
			return theta, false
		}
		for j := i + 1; j < 3; j++ {
			by := m[j][i] / m[i][i]
			for k := i; k < 4; k++ {
				m[j][k] -= by * m[i][k]
			}
		}
	}
	for i := 2; i >= 0; i-- {
		v := m[i][3]
		for j := i + 1; j < 3; j++ {
			v -= m[i][j] * theta[j]
		}
		theta[i] = v / m[i][i]
	}
	for i := range 3 {
		theta[i] *= scale[i]
	}
	return theta, true
}
