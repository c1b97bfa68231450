package transfer

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Outcome is the result of a flight.
type Outcome uint8

// The outcomes.
const (
	Done        Outcome = iota
	Corrupt             // the bytes were not those that were published
	Gone                // there was nothing to move any more
	Unavailable         // the source or the destination cannot be used now
	NoRoom              // no room in the pool, in the tenant's quota, or for the transfer
	Stopped             // the object was removed, the flight timed out, or the engine was stopped
	Lost                // the destination is no longer usable
	Failed              // any other reason
	Outcomes            // number of outcomes
)

// String returns the outcome's name in metrics and output.
func (o Outcome) String() string {
	return [...]string{"done", "corrupt", "gone", "unavailable", "no_room", "stopped", "lost", "failed"}[o]
}

// ErrLost is the error of a flight whose destination is no longer usable.
var ErrLost = errors.New("transfer: lost")

var outcomes = []struct {
	of   error
	sort Outcome
}{
	{ErrStopped, Stopped}, {context.Canceled, Stopped}, {context.DeadlineExceeded, Stopped}, {ErrLost, Lost},
	{tier.ErrCorrupt, Corrupt}, {tier.ErrGone, Gone}, {tier.ErrFull, NoRoom}, {tier.ErrQuota, NoRoom}, {tier.ErrBusy, NoRoom},
	{tier.ErrInvalid, Stopped}, {tier.ErrUnavailable, Unavailable},
}

// OutcomeOf classifies the error that a flight ended with.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	for _, o := range outcomes {
		if errors.Is(err, o.of) {
			return o.sort
		}
	}
	return Failed
}

// Stats are the counts of an engine.
type Stats struct {
	Ended [Outcomes]uint64
	Busy  uint64 // refused starts: too many flights, or the engine is stopped
}
