package objects

// phase is a stage in the life of an object.
//
//	described ──► filling ──► whole ◄──► stripped
//	   │            │          │ ▲          │
//	   │            └────────► │ └ found    │
//	   │        detached ◄─────┘   │        │
//	   │          │  ▲             │        │
//	   │          │  └─────────────│────────┘
//	   ▼          ▼                │
//	unlisted ──► freed          unlisted (a copy in HBM)
//
// Lookups find filling objects as pending, and whole ones as hits. A checkpoint that one
// other extends may be stripped of its states (strip.go): its rows serve the other
// checkpoint, and no lookup finds the stripped one as a hit until it is restored. A
// detached object keeps its memory for its remaining readers. No lookup finds unlisted
// objects. These are buffers, placeholders into which the states of a stripped checkpoint
// are promoted, and copies in HBM that are not verified yet.
type phase uint8

const (
	described phase = iota // has no memory
	Unlisted
	filling
	Whole
	Stripped
	detached
	freed
	phases
)

func (p phase) String() string {
	return [...]string{"described", "unlisted", "filling", "whole", "stripped", "detached", "freed"}[p]
}

// event is a cause of a phase change.
type event uint8

const (
	evBook    event = iota // its memory is accounted for
	evLink                 // lookups find it as pending
	evPublish              // all its parts are complete
	evFind                 // a copy in HBM has been verified
	evStrip                // its states leave memory
	evRestore              // its states are back
	evDetach               // no lookup finds it any more
	evFree                 // its memory is freed
	events
)

func (e event) String() string {
	return [...]string{"booked", "linked", "published", "found", "stripped", "restored", "detached", "freed"}[e]
}

// life maps a phase and an event to the next phase. The zero value (the phase described) marks
// an event that is impossible in that phase.
var life = [phases][events]phase{
	described: {evBook: Unlisted, evLink: filling},
	Unlisted:  {evFind: Whole, evFree: freed},
	filling:   {evPublish: Whole, evDetach: detached},
	Whole:     {evStrip: Stripped, evDetach: detached},
	Stripped:  {evRestore: Whole, evDetach: detached},
	detached:  {evFree: freed},
}
