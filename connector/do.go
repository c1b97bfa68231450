package connector

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/connector/wire"
)

// do sends the request m and returns the body of its reply, a view that lives as
// long as c. A reply with a code is an error of its kind.
func (a *attachment) do(ctx context.Context, c *call, tenant uint32, m wire.Message, fds []int) ([]byte, error) {
	if err := a.start(ctx, c, tenant, m, fds); err != nil {
		return nil, err
	}
	return a.result(ctx, c)
}

// result waits for the reply of a started call.
func (a *attachment) result(ctx context.Context, c *call) ([]byte, error) {
	if err := a.finish(ctx, c); err != nil {
		return nil, err
	}
	h, body := c.header()
	if h.Code != wire.OK {
		return nil, refusal(c.op, h.Code, body)
	}
	return body, nil
}

// decode reads a reply. One that cannot be read ends the attachment: nobody
// knows what the daemon holds for us now.
func (a *attachment) decode(op wire.Op, m wire.Message, body []byte) error {
	if err := m.Decode(body); err != nil {
		a.garbage(err)
		return fmt.Errorf("%s: %v: %w", op, err, ErrUnavailable)
	}
	return nil
}

// rows checks that a reply has a row for each row of its request.
func (a *attachment) rows(op wire.Op, got, want int) error {
	if got == want {
		return nil
	}
	return a.malformed("%s: reply of %d rows, want %d", op, got, want)
}

// malformed ends the attachment over a reply that makes no sense.
func (a *attachment) malformed(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	a.garbage(err)
	return fmt.Errorf("%v: %w", err, ErrUnavailable)
}

// wireHashes is the same memory under the codec's type.
func wireHashes[T ~[32]byte](v []T) [][32]byte {
	return unsafe.Slice((*[32]byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}
