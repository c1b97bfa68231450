package advise

// origin is why an object would be stored. The advisor estimates for each origin how often
// such objects are reused.
type origin uint8

const (
	originNone     origin = iota
	originBranch          // checkpoints where prompts diverge
	originPrompt          // checkpoints at the end of a prompt, without an answer
	originAnswer          // checkpoints at the end of an answer
	originBoundary        // checkpoints at boundaries that the application named
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

// returns learns which share of the objects of an origin is reused. It counts all objects
// that were considered, stored or not, so that an origin that is refused now can become
// worth storing again. The field ended counts the considered objects, and the field back
// counts those that were wanted again.
type returns struct{ ended, back float64 }

// returnsMemory is the number of observations after which older ones fade. returnsPrior is
// the number of assumed observations at the start, one of them a reuse. Both are guesses:
// answers are often continued, prompts without their answers are seldom repeated, and other
// prompts seldom end in the middle of a prompt. After 40 answers without a continuation, a
// further answer is not worth storing if storing it costs a fortieth of computing it.
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

// share returns the expected share of an origin's objects that are reused.
func (r *returns) share(o origin) float64 { return (r.back + 1) / (r.ended + returnsPrior[o]) }
