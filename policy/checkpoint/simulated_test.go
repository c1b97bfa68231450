package checkpoint

import (
	"math"
	"math/rand/v2"
	"testing"
)

// simulated draws prompts over documents of unlike lengths and popularity 1/rank,
// in the form of a depth file: preamble, document, then a question of up to
// question tokens; the last held prompts can be hit.
func simulated(seed uint64, documents, held, requests, preamble, question int) []depth {
	rng := rand.New(rand.NewPCG(seed, 11))
	text, popularity := make([]int, documents), make([]float64, documents)
	sum := 0.0
	for i := range text {
		text[i] = int(math.Exp(8 + 1.2*rng.NormFloat64()))
		sum += 1 / float64(i+1)
		popularity[i] = sum
	}
	var rows []depth
	for r := range requests {
		at, group := rng.Float64()*sum, 0
		for popularity[group] < at {
			group++
		}
		boundary := preamble + text[group]
		d := depth{req: r, group: group, length: boundary + 10 + rng.IntN(question), boundary: boundary, best: -1}
		for i := max(0, r-held); i < r; i++ {
			overlap := preamble
			if rows[i].group == group {
				overlap = boundary
			}
			if overlap > d.overlap {
				d.overlap, d.best, d.bestLength = overlap, i, rows[i].length
			}
		}
		rows = append(rows, d)
	}
	return rows
}

// What holds on the depth files holds on traffic made up here, which needs no
// file.
func TestPlannerOnSimulatedDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("replays some thousand requests")
	}
	for name, rows := range map[string][]depth{
		"long documents":               simulated(1, 60, 35, 1500, 0, 60),
		"documents behind a preamble":  simulated(2, 300, 35, 2000, 700, 400),
		"examples and long questions":  simulated(3, 10, 50, 2000, 3000, 8000),
		"few documents, asked at once": simulated(4, 3, 5, 1000, 0, 3000),
	} {
		t.Run(name, func(t *testing.T) {
			laws := replayLaw(rows)
			for _, m := range []int{1, 2, 4, 16} {
				told := online(rows, m,
					func(d depth) Prompt { return Prompt{Tokens: d.length} },
					func(d depth) Prompt { return Prompt{Tokens: d.length, Branch: d.overlap} })
				even := replay(rows, func(d depth) []int { return Align(Balanced(d.length, m), block) }).savings()
				blocks := replay(rows, func(d depth) []int { return aligned(d.length, m, block) }).savings()
				plain, branched := told[0].savings(), told[1].savings()
				t.Logf("%2d: planner %.4f, with branches %.4f; balanced %.4f, block %.4f, dynamic program %.4f", m, plain, branched, even, blocks, laws[m].savings())
				if bar := max(even, blocks, laws[m].savings()); plain < bar-0.01 || branched < bar-0.005 {
					t.Errorf("%d checkpoints: saves %.4f, with branches %.4f, the best of the others %.4f", m, plain, branched, bar)
				}
			}
		})
	}
}
