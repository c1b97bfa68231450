package kernel

func peakFMA(rounds int) (flops float64) {
	switch active {
	case avx512:
		peakFMAAVX512(rounds)
		return float64(rounds) * 24 * 16 * 2
	case avx2:
		peakFMAAVX2(rounds)
		return float64(rounds) * 12 * 8 * 2
	}
	return peakFMAGeneric(rounds)
}
