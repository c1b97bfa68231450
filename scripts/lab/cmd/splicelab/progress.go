package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// progress shows the progress of a command: a bar on a terminal, elsewhere a line for each tenth.
type progress struct {
	w        io.Writer
	terminal bool
	last     int // thousandths drawn
	width    int // columns drawn
}

// newProgress returns a progress bar on w.
func newProgress(w io.Writer) *progress {
	return &progress{w: w, terminal: terminal.Is(w), last: -1}
}

// at shows how much of the work is done, from 0 to 1.
func (p *progress) at(done float64, what string) {
	const width = 40
	thousandths := int(1000 * min(max(done, 0), 1))
	if !p.terminal {
		thousandths -= thousandths % 100
	}
	if thousandths == p.last {
		return
	}
	p.last = thousandths
	if !p.terminal {
		fmt.Fprintf(p.w, "%3d %%  %s\n", thousandths/10, what)
		return
	}
	n := width * thousandths / 1000
	line := fmt.Sprintf("[%s%s] %3d %%  %s", strings.Repeat("#", n), strings.Repeat(".", width-n), thousandths/10, what)
	columns := len([]rune(line))
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-columns)))
	p.width = columns
}

// end clears the bar.
func (p *progress) end() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
	}
}
