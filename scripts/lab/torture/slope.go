package torture

import "math"

// Verdicts on a slope.
const (
	flat  = "flat"      // the interval is below the bound
	open  = "open"      // the bound is within the interval: a longer run would decide
	rises = "rises"     // the interval is above the bound
	short = "too short" // too few samples for an interval
)

// Slope is the trend of a measured value: the slope of the least squares line through its
// samples, with a 95 % confidence interval. The interval allows for correlation: samples that
// resemble their neighbours count less.
type Slope struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	PerHour float64 `json:"per_hour"`
	Low     float64 `json:"low_per_hour"` // lower end of the interval
	High    float64 `json:"high_per_hour"`
	Bound   float64 `json:"bound_percent_per_hour"` // of the mean
	Verdict string  `json:"verdict"`
}

// leastSamples is the minimum number of samples for an interval.
const leastSamples = 8

// slopeOf fits a line to the values y. The slice hours has the times of these values. bound is
// in percent of the mean per hour.
func slopeOf(hours, y []float64, bound float64) Slope {
	n := float64(len(y))
	s := Slope{Samples: len(y), Bound: bound, Verdict: short}
	if len(y) == 0 {
		return s
	}
	middle := 0.0
	for i := range y {
		s.Mean += y[i] / n
		middle += hours[i] / n
	}
	if len(y) < leastSamples {
		return s
	}
	var xx, xy float64
	for i := range y {
		xx += (hours[i] - middle) * (hours[i] - middle)
		xy += (hours[i] - middle) * (y[i] - s.Mean)
	}
	s.PerHour = xy / xx
	rest := make([]float64, len(y))
	var squares, neighbours float64
	for i := range y {
		rest[i] = y[i] - s.Mean - s.PerHour*(hours[i]-middle)
		squares += rest[i] * rest[i]
		if i > 0 {
			neighbours += rest[i] * rest[i-1]
		}
	}
	free := n - 2
	if squares > 0 {
		r := max(0, neighbours/squares)
		free = max(1, n*(1-r)/(1+r)-2)
	}
	half := student(free) * math.Sqrt(squares/free/xx)
	s.Low, s.High = s.PerHour-half, s.PerHour+half
	limit := bound / 100 * s.Mean
	switch {
	case s.Low > limit:
		s.Verdict = rises
	case s.High <= limit:
		s.Verdict = flat
	default:
		s.Verdict = open
	}
	return s
}

// student returns the 97.5 % quantile of Student's t-distribution with v >= 1 degrees of
// freedom. For v = 1 and v = 2 it is exact. For larger v it uses the Cornish-Fisher expansion,
// whose error is within 1 %.
func student(v float64) float64 {
	const z = 1.959964
	switch {
	case v < 2:
		return 12.706
	case v < 3:
		return 4.303
	}
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}
