package checkpoint

import "math"

// SamplesBound is how far, in total variation norm ‖p̂-p‖₁, a histogram of so
// many independent depths is from a law over cells values, but for a chance of
// delta (Theorem 3 of the Sparse Prefix Caching paper). A placement that is
// optimal for the histogram then costs at most 2·cells·SamplesBound more than
// the best one.
func SamplesBound(cells, samples int, delta float64) float64 {
	n := float64(samples)
	return math.Sqrt(float64(cells)/n) + math.Sqrt(2*math.Log(1/delta)/n)
}

// TrackingVariance is the variance term of the bound for exponential weights
// after so many samples (Theorem 4); samples <= 0 stands for the limit. It is
// above one, and so says nothing, for γ = 0.99 and 200 cells or more.
func TrackingVariance(cells int, gamma float64, samples int) float64 {
	v := float64(cells) * (1 - gamma) / (1 + gamma)
	if samples > 0 {
		old := math.Pow(gamma, float64(samples))
		v *= (1 + old) / (1 - old)
	}
	return math.Sqrt(v)
}

// TrackingBias bounds the bias term of the same theorem where the law moves by
// at most drift (in ‖·‖₁) between two samples.
func TrackingBias(gamma, drift float64) float64 { return drift * gamma / (1 - gamma) }

// Block puts a checkpoint every ceil(n/m) tokens: what a cache of m blocks
// keeps.
func Block(n, m int) []int {
	if n <= 0 || m <= 0 {
		return nil
	}
	return Every(n, (n+m-1)/m)
}
