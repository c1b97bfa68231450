package daemon

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

func refuse(code wire.Code, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// errStopping is the cause of contexts that the daemon's end has ended.
var errStopping error = &refusal{code: wire.Unavailable, text: "the daemon is stopping"}

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

// codeOf answers an error; known is false when it is of no kind that a request
// can cause.
func codeOf(err error) (code wire.Code, known bool) {
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

// row answers and counts one row of a batch.
func (t *task) row(err error) uint16 {
	code, known := codeOf(err)
	if !known {
		t.conn.logUnknown(t.header.Op, err)
	}
	return t.rowCode(code)
}

func (t *task) rowCode(code wire.Code) uint16 {
	t.conn.server.counts.row(t.header.Op, code)
	return uint16(code)
}

// ended reports that ctx, not the work, is why a request failed, and the reason:
// DeadlineExceeded, or what its canceler said.
func ended(ctx context.Context, err error) (error, bool) {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err, false
	}
	return context.Cause(ctx), true
}
