package main

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// Whatever clients call themselves, a log on a terminal is text.
func TestLogsHoldNothingThatATerminalObeys(t *testing.T) {
	const name = "\x1b]0;title\a\r\u009b31m\u202e\x9b\x7f\n"
	for _, format := range []string{"json", "console", "console in a file"} {
		var b strings.Builder
		log := newLog(&settings.Config{LogLevel: "info", LogFormat: strings.Fields(format)[0]}, &b, format == "console")
		log.Info().Str("client", name).Err(errors.New(name)).Strs("names", []string{name}).Interface("any", name).Msg(name)
		text := b.String()
		if format == "console" {
			// Its colours are ours.
			for _, colour := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[90m"} {
				text = strings.ReplaceAll(text, colour, "")
			}
		}
		bad := func(r rune) bool { return !unicode.IsPrint(r) }
		if line := strings.TrimSuffix(text, "\n"); line == "" || strings.ContainsFunc(line, bad) {
			t.Errorf("%s: %q", format, text)
		}
	}
}
