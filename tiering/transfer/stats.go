package transfer

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Outcome is how a flight ended.
type Outcome uint8

// The outcomes.
const (
	Done        Outcome = iota
	Corrupt             // the bytes were not those that were published
	Gone                // there was nothing to move any more
	Unavailable         // the source or the destination cannot be used now
	NoRoom              // for the pool, the tenant, or on the way
	Stopped             // removed, past its time, or the engine was stopped
	Lost                // the destination cannot be used any more
	Failed              // for any other reason
	Outcomes            // how many there are
)

// String names an outcome as metrics and people see it.
func (o Outcome) String() string {
	return [...]string{"done", "corrupt", "gone", "unavailable", "no_room", "stopped", "lost", "failed"}[o]
}

// ErrLost is why a flight ended whose destination cannot be used any more.
var ErrLost = errors.New("transfer: lost")

var outcomes = []struct {
	of   error
	sort Outcome
}{
	{ErrStopped, Stopped}, {context.Canceled, Stopped}, {context.DeadlineExceeded, Stopped}, {ErrLost, Lost},
	{tier.ErrCorrupt, Corrupt}, {tier.ErrGone, Gone}, {tier.ErrFull, NoRoom}, {tier.ErrQuota, NoRoom}, {tier.ErrBusy, NoRoom},
	{tier.ErrInvalid, Stopped}, {tier.ErrUnavailable, Unavailable},
}

// OutcomeOf sorts the error that a flight ended with.
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

// Stats is what an engine has counted.
type Stats struct {
	Ended [Outcomes]uint64
	Busy  uint64 // not started: too many, or stopped
}
