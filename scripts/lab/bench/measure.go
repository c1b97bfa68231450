package bench

import (
	"math"
	"slices"
	"time"
)

// quantile returns a quantile of unsorted samples, by nearest rank; 0 without samples.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	i := int(math.Ceil(q*float64(len(s)))) - 1
	return s[min(max(i, 0), len(s)-1)]
}

func median(samples []float64) float64 { return quantile(samples, 0.5) }

// timed returns the duration of f in seconds.
func timed(f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return time.Since(begin).Seconds(), err
}

// alternate runs all figures one after another in each round, so that a varying load of the
// machine affects all of them equally. A figure returns one or several samples; out[i] has all
// samples of figure i.
func alternate(rounds int, figures ...func() ([]float64, error)) ([][]float64, error) {
	out := make([][]float64, len(figures))
	for range rounds {
		for i, figure := range figures {
			samples, err := figure()
			if err != nil {
				return nil, err
			}
			out[i] = append(out[i], samples...)
		}
	}
	return out, nil
}

// each returns a figure that takes n samples of f, in microseconds.
func each(n int, f func() error) func() ([]float64, error) {
	return func() ([]float64, error) {
		out := make([]float64, n)
		for i := range out {
			s, err := timed(f)
			if err != nil {
				return nil, err
			}
			out[i] = s * 1e6
		}
		return out, nil
	}
}

// during returns a figure that samples f, in microseconds, for the duration d.
func during(d time.Duration, f func() error) func() ([]float64, error) {
	return func() ([]float64, error) {
		var out []float64
		for begin := time.Now(); time.Since(begin) < d; {
			s, err := timed(f)
			if err != nil {
				return nil, err
			}
			out = append(out, s*1e6)
		}
		return out, nil
	}
}

// rate returns a figure with one sample: the bytes moved per second, in GB/s, over n calls of f
// that move the given bytes each.
func rate(n int, bytes int64, f func() error) func() ([]float64, error) {
	return func() ([]float64, error) {
		s, err := timed(func() error {
			for range n {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		return []float64{float64(n) * float64(bytes) / s / 1e9}, nil
	}
}
