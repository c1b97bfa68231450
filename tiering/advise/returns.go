package advise

// origin is the kind of a stored object, for estimating how often such objects are reused.
type origin uint8

const (
	originNone     origin = iota
	originBranch          // of a checkpoint: where prompts diverge
	originPrompt          // its end, before an answer
	originAnswer          // its end, with an answer
	originBoundary        // named by the application
	originPlaced
	originSegment
	origins
)

// originOf returns the origin of a checkpoint.
func originOf(w Why, output int) origin {
	switch {
	case w == WhyBranch:
		return originBranch
	case w == WhyBoundary:
		return originBoundary
	case w == WhyPlaced:
		return originPlaced
	case output > 0:
		return originAnswer
	}
	return originPrompt
}

// returns learns the share of an origin that is reused. It counts what was considered, not what
// was stored, so that a refused origin can become worth storing again.
type returns struct{ ended, back float64 }

// returnsMemory is the number of observations after which older ones fade. returnsPrior is
// the number of assumed observations at the start, of which one was a reuse. Guesses: answers
// are often continued, prompts without their answers are seldom repeated, and other prompts
// seldom end in the middle of one. After 40 answers without a continuation, one more is not
// worth a publication that costs a fortieth of computing it.
const returnsMemory = 512.0

var returnsPrior = [origins]float64{
	originBranch: 4, originPrompt: 16, originAnswer: 8, originBoundary: 4, originPlaced: 32, originSegment: 8,
}

func (r *returns) advised() {
	r.ended *= 1 - 1/returnsMemory
	r.back *= 1 - 1/returnsMemory
	r.ended++
}

func (r *returns) came() { r.back = min(r.back+1, r.ended) }

// share returns the expected share of an origin that is reused.
func (r *returns) share(o origin) float64 { return (r.back + 1) / (r.ended + returnsPrior[o]) }
