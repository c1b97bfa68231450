package usage

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Cause is the reason why tokens were computed. Reasons that a match reports have the same numbers
// as in package wire.
type Cause uint8

const (
	Unasked  = Cause(wire.ReasonNone)    // no lookup covered them: a question, or the text after all segments
	Off      = Cause(wire.ReasonOff)     // splicing is switched off for the profile
	Declined = Cause(wire.ReasonOff + 1) // found by match, but the client chose to compute them
	Seam     = Cause(wire.ReasonOff + 2) // next to reused tokens
	causes   = int(Seam) + 1

	Causes = uint8(causes) // number of causes
)

// String returns the name of the cause in listings and series.
func (c Cause) String() string {
	switch c {
	case Unasked:
		return "new"
	case Off:
		return "off"
	case Declined:
		return "declined"
	case Seam:
		return "seam"
	}
	return tier.Reason(c).String()
}

// Causes calls f with every cause and its number of tokens.
func (s *Sums) Causes(f func(c Cause, tokens uint64)) {
	for c, n := range s.Missed {
		f(Cause(c), n)
	}
}
