package kernel

import "time"

// PeakFMA measures the GFLOP/s of one thread that does nothing but independent
// multiply-adds between registers, with the widest instruction set of the kernels.
// Benchmarks use it as the upper limit. It runs for about d, in stretches, and returns the
// best stretch, because this was disturbed least.
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

// peakFMAGeneric does 8*rounds multiply-adds and returns the number of floating-point
// operations.
func peakFMAGeneric(rounds int) (flops float64) {
	var v [8]float32
	for range rounds {
		for i := range v {
			v[i] += v[i] * 0.5
		}
	}
	if v[0] != 0 { // never true, but it keeps the compiler from removing the loop
		panic(v)
	}
	return float64(rounds) * 2 * float64(len(v))
}
