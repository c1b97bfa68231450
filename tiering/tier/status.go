package tier

// Status is the status of a segment in a match.
type Status uint8

// The statuses. The numbers are those of the local protocol.
const (
	StatusMiss    Status = 0
	StatusHit     Status = 1
	StatusPending Status = 2 // a client is filling it
)
