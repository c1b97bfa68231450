package advise

// origin is a kind of thing that is stored in the hope that it is asked for again.
type origin uint8

const (
	originNone     origin = iota
	originBranch          // of a checkpoint: where prompts part
	originPrompt          // its end, before an answer
	originAnswer          // its end, with an answer
	originBoundary        // named by the application
	originPlaced
	originSegment
	origins
)

// originOf is the origin of a checkpoint.
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

// returns learns which share of an origin comes back. What was advised counts, not
// what was stored: an origin that is refused can so become worth storing again.
type returns struct{ ended, back float64 }

// returnsMemory is how many advised ones are remembered, and returnsPrior how many
// are made up at the beginning, of which one came back. Guesses: answers are often
// continued, prompts without theirs seldom repeated, and what lies in the middle
// of a prompt is seldom where others end. After 40 answers that nobody continued
// one more is not worth a publication that takes a fortieth of computing it.
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

// share is the part of an origin that is expected back.
func (r *returns) share(o origin) float64 { return (r.back + 1) / (r.ended + returnsPrior[o]) }
