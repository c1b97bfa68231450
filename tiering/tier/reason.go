package tier

// Reason says why a key is a miss.
type Reason uint8

// The reasons. The numbers are those of the local protocol. What became of a
// key is remembered for a bounded number of keys, after that it is unknown.
const (
	ReasonNone     Reason = 0
	ReasonUnknown  Reason = 1 // never seen, or too long ago
	ReasonEvicted  Reason = 2
	ReasonPending  Reason = 3
	ReasonRemoved  Reason = 4 // by an operator
	ReasonRefused  Reason = 5 // quota or room
	ReasonAborted  Reason = 6 // its writer failed or went away
	ReasonFlagOnly Reason = 7 // a checkpoint exists but not of an accepted kind

	Reasons = 8 // how many there are
)

// String names a reason as metrics and people see it.
func (r Reason) String() string {
	return [...]string{"none", "unknown", "evicted", "pending", "removed", "refused", "aborted", "flag_only"}[r]
}
