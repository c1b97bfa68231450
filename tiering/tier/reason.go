package tier

// Reason says why a key is a miss.
type Reason uint8

// The reasons. The local protocol uses the same numbers. The store remembers why a key
// is gone for a bounded number of keys; for others the reason is ReasonUnknown.
const (
	ReasonNone     Reason = 0
	ReasonUnknown  Reason = 1 // the key was never cached, or too long ago
	ReasonEvicted  Reason = 2
	ReasonPending  Reason = 3
	ReasonRemoved  Reason = 4 // by an operator
	ReasonRefused  Reason = 5 // quota or room
	ReasonAborted  Reason = 6 // its writer failed or disconnected
	ReasonFlagOnly Reason = 7 // a checkpoint exists, but not of an accepted kind

	Reasons = 8 // number of reasons
)

// String returns the reason's name in metrics and output.
func (r Reason) String() string {
	return [...]string{"none", "unknown", "evicted", "pending", "removed", "refused", "aborted", "flag_only"}[r]
}
