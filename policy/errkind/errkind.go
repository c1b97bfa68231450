// Package errkind adds kinds to errors without adding text.
package errkind

// With returns an error with err's text that wraps err and kind. It is for errors whose text
// says what their kind would say, or that get a kind of another package.
func With(err, kind error) error { return &kindError{error: err, kind: kind} }

type kindError struct {
	error
	kind error
}

func (e *kindError) Unwrap() []error { return []error{e.error, e.kind} }
