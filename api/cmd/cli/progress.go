package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// Progress shows the progress of a command: a bar on a terminal, elsewhere a line for each tenth.
type Progress struct {
	w        io.Writer
	terminal bool
	last     int // thousandths drawn
	width    int // columns drawn
}

// NewProgress returns a progress bar on w.
func NewProgress(w io.Writer) *Progress {
	return &Progress{w: w, terminal: terminal.Is(w), last: -1}
}

// At shows how much of the work is done, from 0 to 1.
func (p *Progress) At(done float64, what string) {
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

// End clears the bar.
func (p *Progress) End() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
	}
}
