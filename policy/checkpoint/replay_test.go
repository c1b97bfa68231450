package checkpoint

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"testing"

	"github.com/spliced-kv/spliced/policy/tracetest"
)

// depth is a row of a depth file. Request req belongs to a group of prompts
// that share a text; its prompt has length tokens, and boundary of them are that
// text, where the application would cut it. Of the last requests held (35 of
// quality, 50 of sysprompts, 100 of narrativeqa) it shares most with request
// best: overlap tokens, of that prompt's bestLength. best = -1: none is held
// that shares anything.
type depth struct{ req, group, length, boundary, best, overlap, bestLength int }

var (
	files   = []string{"quality", "sysprompts", "narrativeqa"}
	budgets = []int{1, 2, 4, 8, 16, 32, 64}
)

const block = 64

func depths(t *testing.T, name string) []depth {
	t.Helper()
	if testing.Short() {
		t.Skip("replays a depth file")
	}
	lines, err := csv.NewReader(bytes.NewReader(tracetest.Read(t, "sparse_depths_"+name+".csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]depth, 0, len(lines))
	for i, line := range lines[1:] {
		var v [7]int
		for j := range v {
			if v[j], err = strconv.Atoi(line[j]); err != nil {
				t.Fatalf("%s, row %d: %v", name, i, err)
			}
		}
		rows = append(rows, depth{v[0], v[1], v[2], v[3], v[4], v[5], v[6]})
	}
	return rows
}

// tally adds up what a placement saved; positions are those of the prompt hit,
// fixed when it came.
type tally struct {
	held             [][]int
	states           int
	computed, shared int
}

func (c *tally) hit(d depth) {
	if d.best >= 0 {
		c.computed += d.overlap - deepest(c.held[d.best], d.overlap)
		c.shared += d.overlap
	}
}

func (c *tally) insert(positions []int) {
	c.held = append(c.held, positions)
	c.states += len(positions)
}

func (c *tally) savings() float64 { return 1 - float64(c.computed)/float64(c.shared) }

func (c *tally) perPrompt() float64 { return float64(c.states) / float64(len(c.held)) }

// hitOf is what a planner hears of a row: what was shared with which prompt, and
// where that prompt had itself left what came before it.
func hitOf(rows []depth, d depth) Hit {
	if d.best < 0 {
		return Hit{}
	}
	return Hit{Depth: d.overlap, Length: d.bestLength, Branch: rows[d.best].overlap}
}

// replay runs rows through placements that learn nothing.
func replay(rows []depth, place func(d depth) []int) *tally {
	var c tally
	for _, d := range rows {
		c.hit(d)
		c.insert(place(d))
	}
	return &c
}

// replayLaw is the online dynamic program of the paper: one histogram of depths
// in blocks, solved again every 10 requests, balanced until the first time.
func replayLaw(rows []depth) map[int]*tally {
	tallies := map[int]*tally{}
	for _, m := range budgets {
		tallies[m] = &tally{}
	}
	h := NewHistogram(0.99)
	var s *Schedule
	for i, d := range rows {
		if d.best >= 0 {
			h.Add(d.overlap / block)
		}
		if (i+1)%10 == 0 && !h.Empty() {
			s = h.Law().Solve(64)
		}
		for _, m := range budgets {
			tallies[m].hit(d)
			if s == nil {
				tallies[m].insert(Align(Balanced(d.length, m), block))
				continue
			}
			positions := s.Place(d.length/block, m)
			for i := range positions {
				positions[i] *= block
			}
			tallies[m].insert(positions)
		}
	}
	return tallies
}

// online runs rows through a planner; each of asks says what it is told of a
// prompt and has a tally of its own.
func online(rows []depth, budget int, asks ...func(d depth) Prompt) []tally {
	tallies := make([]tally, len(asks))
	p := New(Options{Budget: budget})
	for _, d := range rows {
		p.Request(hitOf(rows, d))
		if p.Due() {
			p.Install(p.Problem().Solve())
		}
		for i := range asks {
			tallies[i].hit(d)
			tallies[i].insert(tokensOf(p.Place(asks[i](d))))
		}
	}
	return tallies
}

func tokensOf(positions []Position) []int {
	tokens := make([]int, len(positions))
	for i := range positions {
		tokens[i] = positions[i].Tokens
	}
	return tokens
}

// Savings at 1, 2, 4 … 64 checkpoints, as measured on the depth files with an
// independent program.
var reference = map[string]struct {
	hits                   int
	balanced, block, depth [7]float64
}{
	"quality": {
		1009,
		[7]float64{.5021, .6711, .8066, .8963, .9497, .9781, .9905},
		[7]float64{.0000, .5125, .7750, .9251, .9691, .9775, .9891},
		[7]float64{.8484, .9283, .9813, .9880, .9897, .9901, .9903},
	},
	"sysprompts": {
		8296,
		[7]float64{.4943, .6613, .7949, .8849, .9361, .9650, .9808},
		[7]float64{.0001, .5096, .7718, .8921, .9603, .9811, .9861},
		[7]float64{.4820, .6954, .8514, .9417, .9734, .9813, .9851},
	},
	"narrativeqa": {
		9210,
		[7]float64{.4997, .6664, .7998, .8887, .9409, .9695, .9844},
		[7]float64{.0000, .5005, .7513, .8777, .9431, .9765, .9908},
		[7]float64{.4187, .6619, .8623, .9591, .9864, .9911, .9935},
	},
}

func TestPapersPlacementsOnDepthFiles(t *testing.T) {
	for _, name := range files {
		t.Run(name, func(t *testing.T) {
			rows, want := depths(t, name), reference[name]
			hits := 0
			for _, d := range rows {
				if d.best >= 0 {
					hits++
				}
			}
			if hits != want.hits {
				t.Errorf("%d hits, want %d", hits, want.hits)
			}
			laws := replayLaw(rows)
			for i, m := range budgets {
				within(t, "balanced", m, replay(rows, func(d depth) []int { return Align(Balanced(d.length, m), block) }).savings(), want.balanced[i])
				within(t, "block", m, replay(rows, func(d depth) []int { return aligned(d.length, m, block) }).savings(), want.block[i])
				within(t, "dynamic program", m, laws[m].savings(), want.depth[i])
				if s := replay(rows, func(d depth) []int { return Align(Logarithmic(d.length, m), block) }).savings(); s > 0.505 {
					t.Errorf("logarithmic, %d: %.4f, want at most .50", m, s)
				}
			}
		})
	}
}

func within(t *testing.T, what string, m int, got, want float64) {
	t.Helper()
	if got < want-0.005 || got > want+0.005 {
		t.Errorf("%s, %d: saves %.4f, want %.4f within .005", what, m, got, want)
	}
}

func TestManyAndFewStatesOnDepthFiles(t *testing.T) {
	for name, want := range map[string]struct {
		every, sqrt, last, branched float64
		states                      [2]float64
	}{
		"quality":     {.9951, .9941, .1024, .8575, [2]float64{97, 77}},
		"sysprompts":  {.9924, .9877, .7438, .8814, [2]float64{78, 49}},
		"narrativeqa": {.9996, .9983, .7875, .9827, [2]float64{1344, 266}},
	} {
		t.Run(name, func(t *testing.T) {
			rows := depths(t, name)
			every := replay(rows, func(d depth) []int { return Every(d.length, block) })
			within(t, "every block", 0, every.savings(), want.every)
			sqrt := replay(rows, func(d depth) []int { return Align(Sqrt(d.length), block) })
			within(t, "square root", 0, sqrt.savings(), want.sqrt)
			for i, c := range []*tally{every, sqrt} {
				if got := c.perPrompt(); got < want.states[i]-1 || got > want.states[i]+1 {
					t.Errorf("%.1f states a prompt, want %.0f", got, want.states[i])
				}
			}
			last := replay(rows, func(d depth) []int { return Align([]int{d.length}, block) })
			within(t, "last token", 1, last.savings(), want.last)
			branched := replay(rows, func(d depth) []int { return Align([]int{d.overlap, d.length}, block) })
			within(t, "branch and last token", 2, branched.savings(), want.branched)
		})
	}
}

// Without a boundary of the application a planner may not fall behind the best
// of the three, whichever that is on a file and at a budget. Told the observed
// branch it may not get worse.
func TestPlannerWithoutBoundariesOnDepthFiles(t *testing.T) {
	for _, name := range files {
		t.Run(name, func(t *testing.T) {
			rows, want := depths(t, name), reference[name]
			var plain, branched [7]float64
			for i, m := range budgets {
				told := online(rows, m,
					func(d depth) Prompt { return Prompt{Tokens: d.length} },
					func(d depth) Prompt { return Prompt{Tokens: d.length, Branch: d.overlap} })
				plain[i], branched[i] = told[0].savings(), told[1].savings()
				if bar := max(want.balanced[i], want.block[i], want.depth[i]) - 0.005; plain[i] < bar || branched[i] < bar {
					t.Errorf("%d checkpoints: saves %.4f, with branches %.4f, want at least %.4f", m, plain[i], branched[i], bar)
				}
				if branched[i] < plain[i]-0.001 {
					t.Errorf("%d checkpoints: saves %.4f, with branches only %.4f", m, plain[i], branched[i])
				}
			}
			t.Logf("planner        %.4f", plain)
			t.Logf("with branches  %.4f", branched)
		})
	}
}

func TestPlannerWithBoundariesOnDepthFiles(t *testing.T) {
	for name, want := range map[string][2]float64{"quality": {.9948, .9948}, "sysprompts": {.9870, .9873}, "narrativeqa": {.9996, .9996}} {
		t.Run(name, func(t *testing.T) {
			rows := depths(t, name)
			told := online(rows, 2,
				func(d depth) Prompt { return Prompt{Tokens: d.length, Cuts: []int{d.boundary}, Budget: 1} },
				func(d depth) Prompt { return Prompt{Tokens: d.length, Cuts: []int{d.boundary}, Branch: d.overlap} })
			for i := range told {
				c := &told[i]
				if got := c.savings(); got < want[i]-0.0005 || got < 0.985 {
					t.Errorf("%d checkpoints: saves %.4f, want %.4f and at least .985", i+1, got, want[i])
				}
				if got := c.perPrompt(); got > float64(i+1) {
					t.Errorf("%.3f states a prompt, want at most %d", got, i+1)
				}
				t.Logf("at most %d: saves %.4f with %.3f states a prompt", i+1, c.savings(), c.perPrompt())
			}
		})
	}
}
