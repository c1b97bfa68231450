// Package story draws as text what each part of a prompt was served from.
package story

import (
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// Sources of tokens, in the order of the legend: a mark for the drawing, a style for
// terminals with colours, and words.
var sources = []struct {
	from, style string
	mark        rune
	words       string
}{
	{api.FromEngine, "36", '=', "in the engine's own cache"},
	{api.FromPrefix, "34", '▒', "a saved prefix"},
	{api.FromSegment, "32", '█', "segments placed"},
	{seam, "33", '+', "computed at joins of segments"},
	{api.FromComputed, "31", '·', "computed"},
}

// seam is the reason of tokens that are recomputed at a join.
const seam = "seam"

// seamWeight is the weight of a seam's tokens in a column; other tokens have weight 1. With this
// weight a column shows a seam if more than a fifth of its tokens are part of one.
const seamWeight = 4

func sourceOf(s *api.Span) int {
	from := s.From
	if s.Reason == seam {
		from = seam
	}
	for i := range sources {
		if sources[i].from == from {
			return i
		}
	}
	return len(sources) - 1
}

// leastWidth and mostWidth bound a drawing.
const (
	leastWidth = 20
	mostWidth  = 400
)

// Draw draws a prompt of a number of tokens on width columns, with or without colours. Each
// column shows the source of most of its tokens. A source that would otherwise be invisible,
// such as a narrow seam, gets the column in which it has the most tokens.
func Draw(prompt int, spans []api.Span, width int, colour bool) string {
	width = min(max(width, leastWidth), mostWidth)
	if prompt <= 0 {
		return "an empty prompt\n"
	}
	width = min(width, prompt)
	marks := columns(prompt, spans, width)
	var b strings.Builder
	paint := func(source int, text string) string {
		if !colour {
			return text
		}
		return show.Paint(sources[source].style, text)
	}
	for i := 0; i < width; {
		j := i
		for j < width && marks[j] == marks[i] {
			j++
		}
		b.WriteString(paint(marks[i], strings.Repeat(string(sources[marks[i]].mark), j-i)))
		i = j
	}
	b.WriteByte('\n')
	b.WriteString(ruler(prompt, width) + "\n")
	tokens := make([]int, len(sources))
	for i := range spans {
		tokens[sourceOf(&spans[i])] += spans[i].End - spans[i].Begin
	}
	for i, s := range sources {
		if tokens[i] > 0 {
			fmt.Fprintf(&b, "%s %s tokens %s (%s)\n", paint(i, string(s.mark)), show.Count(tokens[i]), s.words, show.Share(float64(tokens[i])/float64(prompt)))
		}
	}
	return b.String()
}

// columns returns the source that each column shows.
func columns(prompt int, spans []api.Span, width int) []int {
	shares := make([][]int, width) // tokens by source
	for i := range shares {
		shares[i] = make([]int, len(sources))
	}
	for i := range spans {
		s := &spans[i]
		begin, end, source, weight := max(s.Begin, 0), min(s.End, prompt), sourceOf(s), 1
		if s.Reason == seam {
			weight = seamWeight
		}
		for at := begin; at < end; {
			column := at * width / prompt
			// First token of the next column.
			next := min(((column+1)*prompt+width-1)/width, end)
			shares[column][source] += weight * (next - at)
			at = next
		}
	}
	marks := make([]int, width)
	shown := make([]bool, len(sources))
	for i, of := range shares {
		best := len(sources) - 1
		for source, n := range of {
			if n > of[best] {
				best = source
			}
		}
		marks[i], shown[best] = best, true
	}
	for source := range sources {
		best, most := -1, 0
		for i, of := range shares {
			if of[source] > most {
				best, most = i, of[source]
			}
		}
		if !shown[source] && best >= 0 {
			marks[best] = source
		}
	}
	return marks
}

// ruler labels the first token, the end, and the quarters where there is room.
func ruler(prompt, width int) string {
	line := []rune(strings.Repeat(" ", width))
	put := func(at int, text string) {
		for i, r := range text {
			if at+i >= 0 && at+i < len(line) {
				line[at+i] = r
			}
		}
	}
	end := fmt.Sprint(prompt)
	if len(end)+2 > width {
		return end
	}
	put(0, "0")
	if width >= 60 {
		for quarter := 1; quarter < 4; quarter++ {
			put(width*quarter/4, fmt.Sprint(prompt*quarter/4))
		}
	}
	put(width-len(end), end)
	return string(line)
}
