// Package terminal makes text fit for a terminal: names and reports come from clients,
// and an escape sequence among them could retitle the window, hide a line or type.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s with everything escaped that is not printed as itself, line breaks and
// tabs too.
func Line(s string) string { return escape(s, "") }

// Text is Line that leaves line breaks and tabs.
func Text(s string) string { return escape(s, "\n\t") }

// escape writes characters as JSON does, so that a document stays the same to whoever
// reads it as one.
func escape(s, keep string) string {
	clean := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !clean(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		high, low := utf16.EncodeRune(r)
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case clean(r):
			b.WriteRune(r)
		case high != unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// NewWriter returns a writer of Text to w. What is given to one Write is whole
// characters, as it is when it comes from package fmt, tabwriter or json.
func NewWriter(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.w, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
