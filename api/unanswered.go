package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/trust"
)

// noAnswer is the error of a request without an answer. Its text says why there is none.
type noAnswer struct {
	text  string
	cause error
}

func (e *noAnswer) Error() string { return e.text }

func (e *noAnswer) Unwrap() []error { return []error{e.cause, ErrUnavailable} }

// unanswered returns the error of a request without an answer: that of the context if it has
// ended, otherwise an ErrUnavailable whose text says why.
func (c *Client) unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err
	}
	return &noAnswer{c.whyUnanswered(err), err}
}

func (c *Client) whyUnanswered(err error) string {
	_, untrusted := errors.AsType[x509.UnknownAuthorityError](err)
	_, misnamed := errors.AsType[x509.HostnameError](err)
	dns, _ := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, trust.ErrStranger): // names the socket
		return err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer from %s within %v", c.at, c.http.Timeout)
	case errors.Is(err, context.Canceled): // a stream was silent
		return c.at + " does not answer"
	case errors.Is(err, unix.ECONNREFUSED):
		return "nobody listens on " + c.at
	case c.socket && errors.Is(err, fs.ErrNotExist):
		return c.at + ": no such socket"
	case c.socket && errors.Is(err, unix.EPROTOTYPE):
		return fmt.Sprintf("%s is an engine socket; the admin socket beside it is %s", c.at, SocketBeside(c.at))
	case errors.Is(err, http.ErrSchemeMismatch):
		return c.at + " does not speak TLS: use http://"
	case untrusted:
		return "the certificate of " + c.at + " is not trusted: name the file of its authority in SSL_CERT_FILE"
	case misnamed:
		return "the certificate of " + c.at + " is for other names or addresses: use one of these"
	case dns != nil && dns.IsNotFound:
		return "no such host: " + dns.Name
	case closedEarly(err):
		text := c.at + " closed the connection before its answer was complete"
		if !c.socket && strings.HasPrefix(c.base, "http:") {
			text += "; if the port speaks TLS, use https://"
		}
		return text
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		err = call.Err
	}
	return fmt.Sprintf("%s: %v", c.at, err)
}

// closedEarly reports whether the server closed the connection before it had answered. net/http does
// not export the error that it returns when the connection ends before the request is written.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, net.ErrClosed) ||
		strings.Contains(err.Error(), "server closed idle connection")
}
