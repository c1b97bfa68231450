package cost

// Reason is the code of an admission or refusal. The numbers are part of the
// wire protocol; String is for people.
type Reason uint8

// The reasons. Reasons below ReasonShort admit an object; the others refuse it.
const (
	ReasonNone      Reason = 0
	ReasonSeen      Reason = 1 // seen before: expected again
	ReasonCheap     Reason = 2 // not seen, but storing it costs at most ColdShare of computing it
	ReasonAsked     Reason = 3 // the client asked for it
	ReasonReturning Reason = 4 // not seen, but similar objects return
	ReasonShort     Reason = 16
	ReasonCold      Reason = 17
	ReasonThin      Reason = 18
	ReasonLarge     Reason = 19
	ReasonNoGain    Reason = 20

	Reasons = 21
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case ReasonSeen:
		return "seen before"
	case ReasonCheap:
		return "cheap to keep"
	case ReasonAsked:
		return "asked for"
	case ReasonReturning:
		return "such objects come back"
	case ReasonShort:
		return "too short to save anything"
	case ReasonCold:
		return "cold: keeping it costs more than its share of computing it"
	case ReasonThin:
		return "saves less per byte than what would have to leave"
	case ReasonLarge:
		return "larger than its share of the pool"
	case ReasonNoGain:
		return "bringing it back is no faster than computing it"
	}
	return "no reason"
}

// Code returns the reason as one word, for metrics and lists.
func (r Reason) Code() string {
	codes := [Reasons]string{
		ReasonNone: "none", ReasonSeen: "seen", ReasonCheap: "cheap", ReasonAsked: "asked", ReasonReturning: "returning",
		ReasonShort: "short", ReasonCold: "cold", ReasonThin: "thin", ReasonLarge: "large", ReasonNoGain: "no_gain",
	}
	if r >= Reasons || codes[r] == "" {
		return "unknown"
	}
	return codes[r]
}

// Admitted reports whether the reason admits.
func (r Reason) Admitted() bool { return r > ReasonNone && r < ReasonShort }

// Way is a way to serve the start of a prompt. The numbers are part of the wire protocol.
type Way uint8

// The ways.
const (
	WayRecompute Way = 1
	WayPrefix    Way = 2 // load the states of the longest cached prefix, compute the continuation
	WaySplice    Way = 3 // load the prefix and place cached segments after it, compute seams and gaps
	WayReplay    Way = 4 // load a buffer, rebuild the state at its last shared token, compute the continuation

	Ways = 4
)

// String returns the way as a word.
func (w Way) String() string {
	switch w {
	case WayRecompute:
		return "recompute"
	case WayPrefix:
		return "prefix"
	case WaySplice:
		return "splice"
	case WayReplay:
		return "replay"
	}
	return "no way"
}
