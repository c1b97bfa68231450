package usage

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Cause says why tokens were computed. Those that match named have the numbers of
// wire's reasons.
type Cause uint8

const (
	Unasked  = Cause(wire.ReasonNone)    // nobody asked for them: a question, or what follows all segments
	Off      = Cause(wire.ReasonOff)     // the profile is switched off for splicing
	Declined = Cause(wire.ReasonOff + 1) // match found them, and computing was chosen
	Seam     = Cause(wire.ReasonOff + 2) // beside reused ones
	causes   = int(Seam) + 1

	Causes = uint8(causes) // how many there are
)

// String is the cause in listings and series.
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
