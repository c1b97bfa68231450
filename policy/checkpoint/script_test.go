package checkpoint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/scripttest"
)

// TestScripts runs planners that read commands.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) func([]string, scripttest.Values) string {
		s := script{T: t}
		return s.run
	})
}

type script struct {
	*testing.T
	planner *Planner
}

func (s *script) run(command []string, a scripttest.Values) string {
	switch command[0] {
	case "planner":
		s.planner = New(Options{Budget: a.Int("budget"), BlockTokens: a.Int("block")})
	case "request":
		for range max(1, a.Int("times")) {
			s.planner.Request(Hit{
				Depth: a.Int("depth"), Length: a.Int("length"), Branch: a.Int("branch"), Cut: a.Int("cut"), Cuts: a.Int("cuts"),
			})
		}
	case "due":
		return fmt.Sprintln(s.planner.Due())
	case "solve":
		s.planner.Install(s.planner.Problem().Solve())
	case "rule":
		return fmt.Sprintln(s.planner.Rule(s.planner.options.Budget))
	case "place":
		var out strings.Builder
		for _, p := range s.planner.Place(Prompt{
			Tokens: a.Int("tokens"), From: a.Int("from"), Branch: a.Int("branch"), Cuts: a.Ints("cuts"), Budget: a.Int("budget"),
		}) {
			fmt.Fprintln(&out, p.Tokens, p.Why)
		}
		return out.String()
	default:
		s.Fatalf("no command %q", command[0])
	}
	return ""
}
