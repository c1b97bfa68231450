package ragdemo

import (
	"fmt"
	"io"
	"strings"
)

// Bar returns a Progress function that draws a bar on one terminal line, and a
// function that clears it.
func Bar(w io.Writer) (progress func(Progress), clear func()) {
	const width = 40
	return func(p Progress) {
			n := width * p.Done / max(1, p.Total)
			fmt.Fprintf(w, "\r[%s%s] %3d %%  request %d, %-16s",
				strings.Repeat("#", n), strings.Repeat(".", width-n), 100*p.Done/max(1, p.Total), p.Request+1, p.Way)
		}, func() {
			fmt.Fprintf(w, "\r%s\r", strings.Repeat(" ", width+50))
		}
}
