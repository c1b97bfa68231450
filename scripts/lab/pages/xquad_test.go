package pages

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spliced-kv/spliced/policy/tracetest"
	"github.com/spliced-kv/spliced/scripts/lab/pages/xquad"
)

var update = flag.Bool("update", false, "write testdata again")

// corpus is the lengths of XQuAD (English, 240 paragraphs of 48 articles, 1,190
// questions) at four characters a token, rounded up. The text is not shipped.
type corpus struct {
	paragraphs []int
	questions  [][]int // of a paragraph
}

func readCorpus(t testing.TB) *corpus {
	t.Helper()
	var c corpus
	c.paragraphs, c.questions = xquad.Passages()
	if len(c.paragraphs) != 240 {
		t.Fatalf("%d paragraphs", len(c.paragraphs))
	}
	return &c
}

// What is shipped are the lengths of the data set, where that is at hand.
func TestLengthsAreThoseOfTheDataSet(t *testing.T) {
	var set struct {
		Data []struct {
			Paragraphs []struct {
				Context string
				Qas     []struct{ Question string }
			}
		}
	}
	if err := json.Unmarshal(tracetest.Read(t, "xquad.en.json"), &set); err != nil {
		t.Fatal(err)
	}
	tokens := func(text string) int { return ceil(utf8.RuneCountInString(text), 4) }
	c, at := readCorpus(t), 0
	for _, article := range set.Data {
		for _, p := range article.Paragraphs {
			if c.paragraphs[at] != tokens(p.Context) {
				t.Errorf("paragraph %d has %d tokens, shipped %d", at, tokens(p.Context), c.paragraphs[at])
			}
			for i, q := range p.Qas {
				if c.questions[at][i] != tokens(q.Question) {
					t.Errorf("question %d of paragraph %d has %d tokens, shipped %d", i, at, tokens(q.Question), c.questions[at][i])
				}
			}
			at++
		}
	}
	if at != len(c.paragraphs) {
		t.Errorf("%d paragraphs, shipped %d", at, len(c.paragraphs))
	}
}

const (
	listLength       = 300
	listChunks       = 11
	listBlock        = 16
	systemKey        = 1 << 32
	windowSeam       = 8
	listSeed         = 2512_16822 // the paper's number
	paragraphsInList = 240
)

// drawList draws distinct paragraphs for each request, uniformly or by Zipf's law
// (exponent 1, popularity in a drawn order), and a question on one of them.
func (c *corpus) drawList(zipf bool) []xquad.Asked {
	rng := rand.New(rand.NewPCG(listSeed, 1))
	weight := make([]float64, len(c.paragraphs))
	for i, p := range rng.Perm(len(weight)) {
		weight[p] = 1
		if zipf {
			weight[p] = 1 / float64(i+1)
		}
	}
	list := make([]xquad.Asked, listLength)
	for i := range list {
		left := slices.Clone(weight)
		for range listChunks {
			p := pick(rng, left)
			left[p] = 0
			list[i].Passages = append(list[i].Passages, p)
		}
		questions := c.questions[list[i].Passages[rng.IntN(listChunks)]]
		list[i].Question = questions[rng.IntN(len(questions))]
	}
	return list
}

// pick draws an index in proportion to its weight.
func pick(rng *rand.Rand, weight []float64) int {
	total := 0.0
	for _, w := range weight {
		total += w
	}
	at, last := rng.Float64()*total, 0
	for i, w := range weight {
		if w > 0 {
			last = i
			if at < w {
				return i
			}
			at -= w
		}
	}
	return last
}

var lists = []struct {
	name string
	read func() []xquad.Asked
	zipf bool
}{
	{"uniform", xquad.Uniform, false},
	{"zipf", xquad.Zipf, true},
}

func TestListsAreTheirDraw(t *testing.T) {
	c := readCorpus(t)
	for _, l := range lists {
		drawn := c.drawList(l.zipf)
		if *update {
			var b strings.Builder
			fmt.Fprintf(&b, "# %s draw, seed %d: tokens of the question, then its paragraphs\n", l.name, listSeed)
			for _, a := range drawn {
				fmt.Fprintln(&b, a.Question, strings.Trim(fmt.Sprint(a.Passages), "[]"))
			}
			if err := os.WriteFile("xquad/"+l.name+".txt", []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.read(); !slices.EqualFunc(got, drawn, func(a, b xquad.Asked) bool {
			return a.Question == b.Question && slices.Equal(a.Passages, b.Passages)
		}) {
			t.Errorf("%s is not what its seed draws", l.name)
		}
	}
}

// requests turns a list into prompts of system, paragraphs and question. own
// makes the system prompt each request's own, as the paper's figures do not say
// that it is shared.
func (c *corpus) requests(list []xquad.Asked, own bool) []*Request {
	out := make([]*Request, len(list))
	for i, a := range list {
		q := &Request{Pieces: []Piece{{Prefix, systemKey, xquad.SystemTokens}}, Output: xquad.OutputTokens}
		if own {
			q.Pieces[0] = Piece{Kind: Prompt, Tokens: xquad.SystemTokens}
		}
		for _, p := range a.Passages {
			q.Pieces = append(q.Pieces, Piece{Chunk, uint64(p) + 1, c.paragraphs[p]})
		}
		q.Pieces = append(q.Pieces, Piece{Kind: Prompt, Tokens: a.Question})
		out[i] = q
	}
	return out
}

// work is what a run over a list has cost.
type work struct {
	blocks   int // of the smallest pool that refuses nobody
	peak     int // of blocks that residents read
	computed int // tokens
	reused   int
	padding  int // slots
}

// serve keeps the last resident requests of a list in a pool; false when one was
// refused.
func serve(t testing.TB, requests []*Request, resident, blocks int, r Rules, order bool) (work, bool) {
	t.Helper()
	p, w := newPool(t, blocks, r), work{blocks: blocks}
	for i, q := range requests {
		if i >= resident {
			p.Release(RequestID(i - resident))
		}
		if order {
			q = p.Order(q)
		}
		a, err := p.Admit(RequestID(i), q)
		if err != nil {
			return w, false
		}
		w.computed += a.Computed
		w.reused += a.Reused
		w.padding += a.Padding
		w.peak = max(w.peak, p.Stats().Referenced)
	}
	return w, true
}

// need is the smallest pool that holds the last resident requests at all times.
func need(t testing.TB, requests []*Request, resident int, r Rules, order bool) work {
	t.Helper()
	low, high := 0, copied(requests, resident)+1
	for high-low > 1 {
		mid := (low + high) / 2
		if _, ok := serve(t, requests, resident, mid, r, order); ok {
			high = mid
		} else {
			low = mid
		}
	}
	w, _ := serve(t, requests, resident, high, r, order)
	return w
}

// peak is the largest sum of f over windows of a list.
func peak(requests []*Request, resident int, f func(window []*Request) float64) float64 {
	most := 0.0
	for i := range requests {
		most = max(most, f(requests[max(0, i+1-resident):i+1]))
	}
	return most
}

// copied is the peak of copies for each request.
func copied(requests []*Request, resident int) int {
	return int(peak(requests, resident, func(window []*Request) (sum float64) {
		for _, q := range window {
			sum += float64(q.Held(listBlock))
		}
		return sum
	}))
}

// floor is the blocks that the tokens of a window fill without any padding, when
// the first few tokens of a chunk are each request's own: no layout can do with
// less, unless requests share these too.
func floor(requests []*Request, resident int) float64 {
	return peak(requests, resident, func(window []*Request) float64 {
		tokens, seen := 0, map[uint64]bool{}
		for _, q := range window {
			tokens += q.Output
			for _, p := range q.Pieces {
				switch {
				case p.Kind == Prompt:
					tokens += p.Tokens
				case seen[p.Key] && p.Kind == Chunk:
					tokens += windowSeam
				case !seen[p.Key]:
					tokens += p.Tokens
				}
				seen[p.Key] = true
			}
		}
		return float64(tokens) / listBlock
	})
}

// variants are the paper's rules and what we changed, step by step.
var variants = []struct {
	name  string
	own   bool // the system prompt is each request's own
	rules Rules
	order bool // of chunks is left to the pool
}{
	{"paper", true, Rules{}, false},
	{"system prompt shared", false, Rules{}, false},
	{"a: left shared", false, Rules{ShareLeft: true}, false},
	{"rests packed", false, Rules{Pack: true}, false},
	{"b: window of 8, packed", false, Rules{Window: windowSeam, Pack: true}, false},
	{"c: a and b", false, Rules{Window: windowSeam, Pack: true, ShareLeft: true}, false},
	{"c, any order", false, Rules{Window: windowSeam, Pack: true, ShareLeft: true}, true},
}

// TestRatioOfPeaks has the bars. The paper reports 1.97 for SQuAD and 5.74 and
// 5.25 for many concurrent requests; the bars of the paper's rules are 1.9 and
// 5.0, ours are just below what was measured.
func TestRatioOfPeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("a few seconds of searching for pool sizes")
	}
	c := readCorpus(t)
	bars := map[string]map[int][]float64{ // by variant; 0 = none
		"uniform": {75: {2.6, 2.75, 2.78, 3.08, 3.14, 3.14, 3.18}, 300: {5.2, 5.85, 6.0, 7.5, 7.8, 7.9, 8.4}},
		"zipf":    {75: {3.0, 3.25, 3.35, 3.65, 3.73, 3.8, 3.9}, 300: {5.5, 6.2, 7.1, 7.9, 8.3, 9.0, 9.7}},
	}
	for _, l := range lists {
		list := l.read()
		for _, resident := range []int{75, 300} {
			base := copied(c.requests(list, true), resident)
			for i, v := range variants {
				v.rules.BlockTokens = listBlock
				requests := c.requests(list, v.own)
				w := need(t, requests, resident, v.rules, v.order)
				ratio := float64(base) / float64(w.blocks)
				t.Logf("%-7s %3d resident, %-22s %5d / %4d blocks = %.2f; %6d tokens computed, %d reused, %5d slots of padding",
					l.name, resident, v.name, base, w.blocks, ratio, w.computed, w.reused, w.padding)
				if bar := bars[l.name][resident][i]; ratio < bar {
					t.Errorf("%s, %d resident, %s: ratio %.3f, bar %.2f", l.name, resident, v.name, ratio, bar)
				}
				if v.rules.Window > 0 && !v.rules.ShareLeft {
					if least := floor(requests, resident); float64(w.blocks) > least*1.001 || float64(w.blocks) < least {
						t.Errorf("%s, %d resident, %s: %d blocks, no padding gives %.1f", l.name, resident, v.name, w.blocks, least)
					}
				}
			}
		}
	}
}

func TestPaddingCost(t *testing.T) {
	c := readCorpus(t)
	requests := c.requests(lists[0].read(), false)
	total := 0
	for _, n := range c.paragraphs {
		r := Rules{BlockTokens: listBlock}
		pad := 0
		for _, n := range r.runs(&Request{Pieces: []Piece{{Chunk, 1, n}}}) {
			pad += r.padding(&n)
		}
		if pad != (listBlock-n%listBlock)%listBlock {
			t.Fatalf("%d tokens with %d of padding", n, pad)
		}
		total += pad
	}
	// Mean (16 - n mod 16) mod 16, 7.5 when lengths are even.
	if mean := float64(total) / paragraphsInList; mean < 7 || mean > 8 {
		t.Errorf("%.2f slots of padding a chunk", mean)
	}
	for _, v := range variants[3:] {
		v.rules.BlockTokens = listBlock
		if w, ok := serve(t, requests, 300, 1<<14, v.rules, v.order); !ok || w.padding != 0 {
			t.Errorf("%s: %d slots of padding", v.name, w.padding)
		}
	}
}

// A sweep of chunks a prompt, 200 resident over 100 documents, Zipf 1: the
// paper's figure 8 has 2.97 to 5.21 for 2 to 16 chunks.
func TestRatioGrowsWithChunks(t *testing.T) {
	want := map[int][4]float64{128: {2.01, 2.80, 3.93, 5.19}, 256: {2.69, 4.03, 6.14, 8.77}, 512: {3.43, 5.38, 8.78, 13.68}}
	c := readCorpus(t)
	var questions []int
	for _, q := range c.questions {
		questions = append(questions, q...)
	}
	for tokens, row := range want {
		last := 0.0
		for i, chunks := range [4]int{2, 4, 8, 16} {
			rng := rand.New(rand.NewPCG(listSeed, uint64(chunks)))
			requests := make([]*Request, 200)
			for k := range requests {
				weight := make([]float64, 100)
				for d := range weight {
					weight[d] = 1 / float64(d+1)
				}
				q := &Request{Pieces: []Piece{{Kind: Prompt, Tokens: xquad.SystemTokens}}, Output: xquad.OutputTokens}
				for range chunks {
					d := pick(rng, weight)
					weight[d] = 0
					q.Pieces = append(q.Pieces, Piece{Chunk, uint64(d), tokens})
				}
				q.Pieces = append(q.Pieces, Piece{Kind: Prompt, Tokens: questions[rng.IntN(len(questions))]})
				requests[k] = q
			}
			w, ok := serve(t, requests, 200, 1<<17, Rules{BlockTokens: listBlock}, false)
			ratio := float64(copied(requests, 200)) / float64(w.peak)
			t.Logf("%d chunks of %d tokens: %.2f, reference %.2f", chunks, tokens, ratio, row[i])
			if !ok || ratio <= last || ratio < 0.95*row[i] || ratio > 1.05*row[i] {
				t.Errorf("%d chunks of %d tokens: ratio %.3f after %.3f, reference %.2f", chunks, tokens, ratio, last, row[i])
			}
			last = ratio
		}
	}
}

// What the others compute again, of the tokens of cached chunks.
func TestRecomputedTokens(t *testing.T) {
	c := readCorpus(t)
	r := Rules{BlockTokens: listBlock}
	paper, window, blend, epic, all := 0, 0, 0, 0, 0
	w := Rules{BlockTokens: listBlock, Window: windowSeam}
	for _, n := range c.paragraphs {
		paper += r.Seam(n)
		window += w.Seam(n)
		blend += ceil(15*n, 100) // CacheBlend: 15 of 100
		epic += min(16, n)       // EPIC: the first 16
		all += n
	}
	mean := func(n int) float64 { return float64(n) / paragraphsInList }
	t.Logf("of %.1f tokens a chunk: paper %.2f, window %.2f, CacheBlend %.2f, EPIC %.2f", mean(all), mean(paper), mean(window), mean(blend), mean(epic))
	if window != 8*paragraphsInList || epic != 16*paragraphsInList || paper >= epic || blend <= epic {
		t.Errorf("paper %d, window %d, CacheBlend %d, EPIC %d", paper, window, blend, epic)
	}
}
