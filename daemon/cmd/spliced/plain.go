package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// plainWriter escapes, as in JSON, characters that a terminal would interpret. zerolog itself
// escapes only ASCII control characters.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(line []byte) (int, error) {
	var b strings.Builder
	for _, r := range string(line) {
		high, low := utf16.EncodeRune(r)
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case high != unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(p.w, b.String()); err != nil {
		return 0, err
	}
	return len(line), nil
}

// plainMessage formats the message of a line for terminals. It quotes a message with control
// characters, which may come from clients. zerolog quotes the fields itself.
func plainMessage(message any) string {
	text := fmt.Sprint(message)
	if message == nil {
		return ""
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Sprintf("%q", text)
	}
	return text
}
