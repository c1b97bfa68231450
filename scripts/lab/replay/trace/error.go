package trace

import "fmt"

// Code is the kind of an Error, for scripts.
type Code string

// The kinds of Error.
const (
	BadLine       Code = "bad_line"       // a line that its format does not allow
	UnknownFormat Code = "unknown_format" // the format is not recognised
	NoContent     Code = "no_content"     // a trace of lengths only: reuse is unknown
	NotATrace     Code = "not_a_trace"    // the file is recognised, but it is only the companion of a trace
	NoCompanion   Code = "no_companion"   // texts or lengths that the trace refers to are missing
	Mismatch      Code = "mismatch"       // the trace and its companion contradict each other
	NoMember      Code = "no_member"      // the file in the archive is not named or not found
	Empty         Code = "empty"          // no requests
	Unreadable    Code = "unreadable"     // the file or its compression
)

// Error is the error that ended the reading of a trace.
type Error struct {
	Code  Code
	File  string
	Line  int // from 1; 0 = the whole file
	Cause error
}

func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("%s: %s: %v", where, e.Code, e.Cause)
}

func (e *Error) Unwrap() error { return e.Cause }
