// Package terminal makes text safe for a terminal: names and reports come from clients, and an
// escape sequence in them could change the title of the window, hide a line or type input.
package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/term"
)

// Line returns s with all unprintable characters escaped, including line breaks and tabs.
func Line(s string) string { return escape(s, "") }

// Text is like Line, but keeps line breaks and tabs.
func Text(s string) string { return escape(s, "\n\t") }

// escape writes characters as JSON does, so that the content of a document stays the same.
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

// Writer writes text, escaped by Text, to another writer. Each Write must contain whole
// characters, as those of packages fmt, tabwriter and json do.
type Writer struct {
	w      io.Writer
	colour bool
}

// NewWriter returns a writer to w, with colours if w is a terminal that has them and the
// environment does not forbid them (NO_COLOR).
func NewWriter(w io.Writer, env []string) *Writer {
	refused := slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" })
	return &Writer{w: w, colour: !refused && colorprofile.Detect(w, env) > colorprofile.ASCII}
}

// Coloured returns a writer to w, which a terminal with colours shows.
func Coloured(w io.Writer) *Writer { return &Writer{w: w, colour: true} }

// Write escapes characters that a terminal would interpret.
func (w *Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.w, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Plain returns the writer below w if w is a *Writer, and whether it may get colours. Text that is
// written to the returned writer is not escaped, so the caller escapes what comes from others. If w
// is no *Writer, Plain returns w and false.
func Plain(w io.Writer) (plain io.Writer, colour bool) {
	if t, ok := w.(*Writer); ok {
		return t.w, t.colour
	}
	return w, false
}

// To returns a writer to another destination, with colours if w has them.
func (w *Writer) To(other io.Writer) *Writer { return &Writer{other, w.colour} }

// Is reports whether w is a terminal.
func Is(w any) bool {
	f, ok := w.(term.File)
	return ok && term.IsTerminal(f.Fd())
}

// Width returns the number of columns of the terminal w; 0 = not a terminal.
func Width(w any) int {
	f, ok := w.(term.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return width
}
