package tracetest

import (
	"strings"
	"testing"
)

// keepObservations is the rule of SWE-agent: a prompt has only the last five observations.
const keepObservations = 5

// SWE returns the requests of 100 agent sessions in the named arrival order. Sessions in
// orders named c5... drop old observations. Sessions in orders named app... only append.
func SWE(tb testing.TB, orders map[string][]order, sessions [][][]uint32, name string) Trace {
	tb.Helper()
	list, ok := orders[name]
	if !ok {
		tb.Fatalf("no order %s", name)
	}
	collapse := strings.HasPrefix(name, "c5")
	return func(each func(input, output []uint32)) {
		histories := make([]conversation, len(sessions))
		var input []uint32
		for _, o := range list {
			turns := sessions[o.session]
			h := &histories[o.session]
			prompt, answer := turns[2*o.turn], turns[2*o.turn+1]
			input = append(h.appendTo(input[:0]), prompt...)
			if len(input) != o.input || len(answer) != o.output {
				tb.Fatalf("%s: session %d turn %d has %d and %d tokens, the order says %d and %d",
					name, o.session, o.turn, len(input), len(answer), o.input, o.output)
			}
			each(input, answer)
			h.end(prompt, answer, collapse)
		}
	}
}

// conversation is the beginning that a session's next prompt repeats.
type conversation struct {
	turns [][2][]uint32 // observation (nil if it was dropped) and answer
	whole int           // number of turns with their observation
}

func (c *conversation) appendTo(to []uint32) []uint32 {
	for _, t := range c.turns {
		to = append(append(to, t[0]...), t[1]...)
	}
	return to
}

// end adds a turn. The first prompt always stays.
func (c *conversation) end(prompt, answer []uint32, collapse bool) {
	if collapse && c.whole > keepObservations {
		c.turns[len(c.turns)-keepObservations][0] = nil
		c.whole--
	}
	c.turns = append(c.turns, [2][]uint32{prompt, answer})
	c.whole++
}
