package tier

// Status is the status of a segment in a match.
type Status uint8

// The statuses. The local protocol uses the same numbers.
const (
	StatusMiss    Status = 0
	StatusHit     Status = 1
	StatusPending Status = 2 // a client is filling it
)
