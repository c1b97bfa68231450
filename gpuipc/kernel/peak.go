package kernel

import "time"

// PeakFMA measures how many GFLOP/s one thread reaches with nothing but
// independent multiply-adds between registers, at the widest instruction set the
// kernels use: the limit that benchmarks print beside their own figure. It runs
// for about d, at least one stretch, and answers the best stretch, which is the
// one least disturbed by others.
func PeakFMA(d time.Duration) (gflops float64) {
	const rounds = 20_000
	for begin, first := time.Now(), true; first || time.Since(begin) < d; first = false {
		t := time.Now()
		flops := peakFMA(rounds)
		if v := flops / float64(time.Since(t).Nanoseconds()); v > gflops {
			gflops = v
		}
	}
	return gflops
}

// peakFMAGeneric does rounds of 8 multiply-adds and tells the operations done.
func peakFMAGeneric(rounds int) (flops float64) {
	var v [8]float32
	for range rounds {
		for i := range v {
			v[i] += v[i] * 0.5
		}
	}
	if v[0] != 0 { // never, but keeps the loop
		panic(v)
	}
	return float64(rounds) * 2 * float64(len(v))
}
