package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/valyala/fasthttp"
)

// Codes of problems, stable for scripts; each has a fixed status.
const (
	CodeInvalid          = "invalid"               // 400
	CodeUnauthorized     = "unauthorized"          // 401
	CodeForbiddenHost    = "forbidden_host"        // 403: Host or Origin of another site
	CodeReadOnly         = "read_only"             // 403: this listener does not allow changes
	CodeNotFound         = "not_found"             // 404
	CodeMethodNotAllowed = "method_not_allowed"    // 405
	CodeTimeout          = "timeout"               // 408: the request came too slowly
	CodeBusy             = "busy"                  // 409
	CodeChanged          = "changed"               // 412: the version differs from If-Match
	CodeTooLarge         = "too_large"             // 413, 431
	CodeMediaType        = "media_type"            // 415
	CodeUnsupported      = "unsupported"           // 422: impossible while the daemon runs; errors name the fields
	CodeBadFile          = "bad_file"              // 422: errors name the settings with bad files
	CodePrecondition     = "precondition_required" // 428: If-Match is missing
	CodeInternal         = "internal"              // 500
	CodeUnavailable      = "unavailable"           // 503
	CodeFull             = "full"                  // 507
)

// types lists the problems that have their own type. All others have the type about:blank and
// the title of their HTTP status.
var types = map[string]struct{ uri, title string }{
	CodeChanged:     {"urn:spliced:problem:changed", "Changed Meanwhile"},
	CodeUnsupported: {"urn:spliced:problem:unsupported", "Not While The Daemon Runs"},
	CodeBadFile:     {"urn:spliced:problem:bad_file", "Files Cannot Be Used"},
	CodeFull:        {"urn:spliced:problem:full", "No Room"},
	CodeBusy:        {"urn:spliced:problem:busy", "In Use"},
}

// Problem is an RFC 9457 problem: the answer to a request that failed.
//
// Client returns it as an error. errors.Is matches the sentinel error of its code.
type Problem struct {
	Type   string      `json:"type"` // about:blank, or urn:spliced:problem: and the code
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail,omitempty"`
	Code   string      `json:"code" enum:"Code*"`
	Errors []Violation `json:"errors,omitempty"` // all bad parameters or fields of the request
}

// Violation is one bad parameter or field.
type Violation struct {
	Parameter string `json:"parameter"`
	Detail    string `json:"detail"`
}

// Error implements error.
func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", p.Status, p.Code)
	if p.Detail != "" {
		b.WriteString(": " + p.Detail)
	}
	for _, v := range p.Errors {
		fmt.Fprintf(&b, "; %s: %s", v.Parameter, v.Detail)
	}
	return b.String()
}

// Unwrap returns the sentinel of the code, nil for codes without one.
func (p *Problem) Unwrap() error {
	for _, k := range kinds {
		if k.code == p.Code {
			return k.is
		}
	}
	return nil
}

func newProblem(status int, code, detail string, errs ...Violation) *Problem {
	p := &Problem{Type: "about:blank", Title: fasthttp.StatusMessage(status), Status: status, Code: code, Detail: detail, Errors: errs}
	if own, ok := types[code]; ok {
		p.Type, p.Title = own.uri, own.title
	}
	return p
}

// kinds maps sentinel errors to HTTP statuses and codes. The first match wins. No other place
// maps them.
var kinds = []struct {
	is     error
	status int
	code   string
}{
	{ErrInvalid, fasthttp.StatusBadRequest, CodeInvalid},
	{ErrNotFound, fasthttp.StatusNotFound, CodeNotFound},
	{ErrBusy, fasthttp.StatusConflict, CodeBusy},
	{ErrUnavailable, fasthttp.StatusServiceUnavailable, CodeUnavailable},
	{ErrFull, fasthttp.StatusInsufficientStorage, CodeFull},
	{ErrUnsupported, fasthttp.StatusUnprocessableEntity, CodeUnsupported},
	{ErrBadFile, fasthttp.StatusUnprocessableEntity, CodeBadFile},
}

func problemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return newProblem(k.status, k.code, strings.TrimSuffix(err.Error(), ": "+k.is.Error())) // the code names it
		}
	}
	return newProblem(fasthttp.StatusInternalServerError, CodeInternal, err.Error())
}

// BadFiles returns an ErrBadFile that lists the settings whose files are bad.
func BadFiles(list []Violation) error {
	return newProblem(fasthttp.StatusUnprocessableEntity, CodeBadFile, counted(len(list), "file")+" cannot be used; all previous ones stay in use", list...)
}

// Invalid returns an ErrInvalid that lists the bad fields of the configuration.
func Invalid(list ...Violation) error {
	return newProblem(fasthttp.StatusBadRequest, CodeInvalid, counted(len(list), "bad field"), list...)
}

// counted returns a number of things in words.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Unsupported returns an ErrUnsupported for a field of the configuration.
func Unsupported(field, why string) error {
	return unsupported(Violation{field, why})
}

func unsupported(list ...Violation) *Problem {
	return newProblem(fasthttp.StatusUnprocessableEntity, CodeUnsupported, counted(len(list), "field")+" cannot change while the daemon runs", list...)
}

// noPath is the problem of a path without a route. The dashboard recognizes an older daemon
// by its text.
func noPath(path string) *Problem {
	return newProblem(fasthttp.StatusNotFound, CodeNotFound, fmt.Sprintf("no such path: %.100s", path))
}

// noMethod is the problem of a method that a path does not have.
func noMethod(ctx *fasthttp.RequestCtx, allow string) *Problem {
	ctx.Response.Header.Set("Allow", allow)
	return newProblem(fasthttp.StatusMethodNotAllowed, CodeMethodNotAllowed, fmt.Sprintf("%.20s is not served here", ctx.Method()))
}

func writeProblem(ctx *fasthttp.RequestCtx, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil { // strings and ints only: cannot happen
		panic(fmt.Sprintf("api: cannot encode a problem: %v", err))
	}
	ctx.Response.ResetBody()
	ctx.SetStatusCode(p.Status)
	ctx.SetContentType("application/problem+json")
	ctx.SetBody(body)
}

// readProblem is the problem of a request that could not be read.
func readProblem(err error) *Problem {
	var small *fasthttp.ErrSmallBuffer
	var slow interface{ Timeout() bool }
	p := newProblem(fasthttp.StatusBadRequest, CodeInvalid, "malformed HTTP/1.1 request")
	switch {
	case errors.As(err, &small):
		p = newProblem(fasthttp.StatusRequestHeaderFieldsTooLarge, CodeTooLarge,
			fmt.Sprintf("request line and headers exceed %d bytes", maxHeaderBytes))
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = newProblem(fasthttp.StatusRequestEntityTooLarge, CodeTooLarge,
			fmt.Sprintf("request body exceeds %d bytes, or %d for locate", maxBodyBytes, maxLocateBytes))
	case errors.As(err, &slow) && slow.Timeout():
		p = newProblem(fasthttp.StatusRequestTimeout, CodeTimeout, "timed out reading the request")
	}
	return p
}
