package profile

// Family is a linear-attention variant. Its properties are its row in families.
type Family uint8

// The linear-attention families of HYPIC Table 1, Mamba1 and Gated DeltaNet-2.
// The numbers are part of the canonical bytes.
const (
	FamilyNone Family = iota
	RetNet
	Lightning
	Mamba2
	GLA
	Mamba1 // heads = channels, KeyDim = state size N, ValueDim = 1
	DeltaNet
	GDN
	KDA
	GDN2 // KDA with gates per channel, one to erase and one to write
)

// Transition is the algebraic form of a linear layer's per-token transition
// operator (HYPIC Table 1); products of operators keep their form.
type Transition uint8

// The transition forms and what T stores per value head.
const (
	TransitionNone Transition = iota
	Scalar                    // one number
	Diagonal                  // KeyDim numbers
	Dense                     // KeyDim x KeyDim, acts from the left
)

// Decay is the kind of decay of a family.
type Decay uint8

// The decays of one value head.
const (
	DecayNone    Decay = iota
	DecayFixed         // a constant of the model, see Linear.Slopes
	DecayPerHead       // one number per token
	DecayPerKey        // one number per token and key channel
)

type familyRow struct {
	name       string
	transition Transition
	decay      Decay
}

// families has the properties of each family.
var families = [...]familyRow{
	FamilyNone: {"none", TransitionNone, DecayNone},
	RetNet:     {"retnet", Scalar, DecayFixed},
	Lightning:  {"lightning", Scalar, DecayFixed},
	Mamba2:     {"mamba2", Scalar, DecayPerHead},
	GLA:        {"gla", Diagonal, DecayPerKey},
	Mamba1:     {"mamba1", Diagonal, DecayPerKey},
	DeltaNet:   {"deltanet", Dense, DecayNone},
	GDN:        {"gdn", Dense, DecayPerHead},
	KDA:        {"kda", Dense, DecayPerKey},
	GDN2:       {"gdn2", Dense, DecayPerKey},
}

// Transition returns the form of the family's transition operator,
// TransitionNone for an unknown family.
func (f Family) Transition() Transition {
	if int(f) >= len(families) {
		return TransitionNone
	}
	return families[f].transition
}

// Decay returns the kind of decay, DecayNone for an unknown family.
func (f Family) Decay() Decay {
	if int(f) >= len(families) {
		return DecayNone
	}
	return families[f].decay
}

func (f Family) String() string {
	if int(f) >= len(families) {
		return name(int(f))
	}
	return families[f].name
}
