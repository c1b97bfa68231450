package link

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/connector/wire"
)

// Do sends the request m and returns the body of its reply: a view of memory of c, valid until c
// returns to the pool. For a reply with an error code, Do returns the error of that code.
func (a *Attachment) Do(ctx context.Context, c *Call, tenant uint32, m wire.Message, fds []int) ([]byte, error) {
	if err := a.Start(ctx, c, tenant, m, fds); err != nil {
		return nil, err
	}
	return a.Result(ctx, c)
}

// Result waits for the reply of a started call.
func (a *Attachment) Result(ctx context.Context, c *Call) ([]byte, error) {
	if err := a.finish(ctx, c); err != nil {
		return nil, err
	}
	h, body := c.header()
	if h.Code != wire.OK {
		return nil, Refusal(c.Op, h.Code, body)
	}
	return body, nil
}

// Ask sends a request and decodes its reply, whose slices are views of memory of c, valid until
// c returns to the pool.
func (a *Attachment) Ask(ctx context.Context, c *Call, tenant uint32, request, reply wire.Message) error {
	body, err := a.Do(ctx, c, tenant, request, nil)
	if err != nil {
		return err
	}
	return a.Decode(c.Op, reply, body)
}

// Decode reads a reply. An unreadable reply ends the attachment, because the client then does
// not know which leases the daemon has granted.
func (a *Attachment) Decode(op wire.Op, m wire.Message, body []byte) error {
	if err := m.Decode(body); err != nil {
		a.BrokeProtocol(err)
		return fmt.Errorf("%s: %v: %w", op, err, ErrUnavailable)
	}
	return nil
}

// CheckRows checks that a reply has a row for each row of its request.
func (a *Attachment) CheckRows(op wire.Op, got, want int) error {
	if got == want {
		return nil
	}
	return a.Malformed("%s: reply of %d rows, want %d", op, got, want)
}

// Malformed ends the attachment because of a reply that makes no sense.
func (a *Attachment) Malformed(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	a.BrokeProtocol(err)
	return fmt.Errorf("%v: %w", err, ErrUnavailable)
}
