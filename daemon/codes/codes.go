// Package codes turns what goes wrong into the codes of the wire: the one place
// that knows which kind of failure a client is told.
package codes

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// refusal is an error that knows its code: what the daemon itself refuses.
type refusal struct {
	code wire.Code
	text string
}

func (r *refusal) Error() string { return r.text }

// Refuse is an error with a code of its own.
func Refuse(code wire.Code, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// kinds is the one place where kinds of failure become wire codes. The first
// match counts; an error that wraps none of them is a mistake of ours.
var kinds = []struct {
	err  error
	code wire.Code
}{
	{wire.ErrVersion, wire.Unsupported},
	{wire.ErrMalformed, wire.Invalid},
	{tier.ErrInvalid, wire.Invalid},
	{tier.ErrBusy, wire.Busy},
	{tier.ErrFull, wire.Full},
	{tier.ErrQuota, wire.Quota},
	{tier.ErrGone, wire.Gone},
	{tier.ErrExists, wire.Exists},
	{tier.ErrCorrupt, wire.Corrupt},
	{tier.ErrUnavailable, wire.Unavailable},
	{tier.ErrWithheld, wire.Canceled},
	{gpuipc.ErrInvalid, wire.Invalid},
	{gpuipc.ErrFull, wire.Full},
	{gpuipc.ErrUnavailable, wire.Unavailable},
	{profile.ErrInvalid, wire.Invalid},
	{context.DeadlineExceeded, wire.Late},
	{context.Canceled, wire.Canceled},
}

// Of answers an error; known is false when it is of no kind that a request
// can cause.
func Of(err error) (code wire.Code, known bool) {
	if err == nil {
		return wire.OK, true
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.code, true
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.code, true
		}
	}
	return wire.Unavailable, false
}

// Ended reports that ctx, not the work, is why a request failed, and the reason:
// DeadlineExceeded, or what its canceler said.
func Ended(ctx context.Context, err error) (error, bool) {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err, false
	}
	return context.Cause(ctx), true
}
