package cost

// Prefill predicts the milliseconds of a prefill. The zero value means that there is no
// prediction.
type Prefill struct {
	Fixed           float64 // milliseconds per run: launch, scheduling
	PerToken        float64
	PerTokenSquared float64 // attention: grows with the square of the position, see the package doc
}

// DefaultPrefill is used for a model of unknown work until a prefill is measured. It is a
// guess, of the order of a hybrid with 12 billion parameters on four A100 GPUs. The first
// sample scales it.
var DefaultPrefill = Prefill{Fixed: 10, PerToken: 0.05, PerTokenSquared: 2e-7}

// Millis predicts one run over tokens [begin, end), with the tokens [0, begin) already
// cached.
func (p Prefill) Millis(begin, end int) float64 {
	if end <= begin {
		return 0
	}
	return p.Fixed + p.Marginal(begin, end)
}

// Marginal returns the time that tokens [begin, end) add to a run that happens
// anyway.
func (p Prefill) Marginal(begin, end int) float64 {
	if end <= begin {
		return 0
	}
	b, e := float64(max(begin, 0)), float64(end)
	return p.PerToken*(e-b) + p.PerTokenSquared*(e*e-b*b)
}

func (p Prefill) scaled(by float64) Prefill {
	return Prefill{Fixed: p.Fixed * by, PerToken: p.PerToken * by, PerTokenSquared: p.PerTokenSquared * by}
}

// IsZero reports whether p predicts nothing.
func (p Prefill) IsZero() bool { return p == Prefill{} }
