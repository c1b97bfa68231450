// Package codes converts errors to codes of the wire protocol. No other package decides which code
// a client gets for a kind of failure.
package codes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// refusal is an error of the daemon itself, with its code.
type refusal struct {
	code wire.Code
	text string
}

func (r *refusal) Error() string { return r.text }

// Refuse returns an error with the given code.
func Refuse(code wire.Code, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// kinds maps kinds of errors to wire codes. The first match applies. An error that wraps none of
// these kinds is a bug of the daemon.
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

// Of returns the code of an error. It returns false if the error is of no known kind, which is a
// bug.
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

// Text returns the text of an error for a reply with its code, without the kind at its end:
// clients add it from the code.
func Text(code wire.Code, err error) string {
	text := without(code.String(), err.Error())
	for _, k := range kinds {
		if k.code == code {
			text = without(k.err.Error(), text)
		}
	}
	return text
}

func without(kind, text string) string {
	if text == kind {
		return ""
	}
	return strings.TrimSuffix(text, ": "+kind)
}

// Ended reports whether a request failed because its ctx ended. If so, it returns the reason:
// DeadlineExceeded, or the cause of the cancellation. If not, it returns err.
func Ended(ctx context.Context, err error) (error, bool) {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err, false
	}
	return context.Cause(ctx), true
}
