package checkpoint

import (
	"math/bits"
	"slices"
)

// Limits and defaults of a Planner. γ and the period are from the Sparse Prefix Caching
// paper. The block of 64 tokens is from the paper's implementation.
const (
	MaxBudget      = 256
	defaultBudget  = 8
	defaultBlock   = 64
	defaultPeriod  = 10
	defaultGamma   = 0.99
	maxCuts        = 64
	ruleGamma      = 0.997 // savings 333 hits ago still have a third of the weight
	ruleMargin     = 0.97  // a rule takes over when its losses are below that share of the leader's, so that noise does not switch rules
	branchQuarters = 4
)

// Options configure a Planner. Zero fields have the defaults named below.
type Options struct {
	BlockTokens int     // positions are multiples of it; default 64
	Budget      int     // most checkpoints per prompt, at most MaxBudget; default 8
	Period      int     // requests between two solutions; default 10
	Gamma       float64 // weight of a hit divided by the weight of the next hit; default 0.99
}

// Hit describes what a request shares with a cached prompt. The zero value means that it
// shares nothing.
type Hit struct {
	Depth  int // shared tokens
	Length int // tokens of the cached prompt
	Branch int // token at which the cached prompt branched off earlier prompts; 0 = none
	Cut    int // number of cuts of the cached prompt within Depth
	Cuts   int // number of all cuts of the cached prompt
}

// Planner learns where prompts branch and places checkpoints. It has one owner.
//
// Invariant: its memory does not grow with the number of requests. At a budget of 8 it
// grows to some 300 KB in thousands of different hits, for the solution and three
// histograms of at most maxCells cells.
type Planner struct {
	options  Options
	laws     laws
	solution *Solution
	requests int // since the last Problem
	hits     int // since the last Problem

	lost   [][rules]float64             // by class of budget: tokens that each rule recomputed, exponentially weighted
	scored int                          // hits that were scored
	leader []Rule                       // by class of budget: the best rule
	branch [][branchQuarters][2]float64 // by budget class and quarter of the branch: savings without and with a checkpoint there
	front  [maxCuts]float64             // weight of hits whose last shared cut was the i-th
	back   [maxCuts]float64             // the same, counted from the last cut
}

// New returns a planner without statistics.
func New(o Options) *Planner {
	if o.BlockTokens <= 0 {
		o.BlockTokens = defaultBlock
	}
	if o.Budget <= 0 {
		o.Budget = defaultBudget
	}
	o.Budget = min(o.Budget, MaxBudget)
	if o.Period <= 0 {
		o.Period = defaultPeriod
	}
	if o.Gamma <= 0 || o.Gamma > 1 {
		o.Gamma = defaultGamma
	}
	classes := classOf(o.Budget) + 1
	return &Planner{
		options: o, laws: newLaws(o.BlockTokens, o.Gamma),
		lost: make([][rules]float64, classes), leader: make([]Rule, classes), branch: make([][branchQuarters][2]float64, classes),
	}
}

// classOf groups budgets by powers of two.
func classOf(budget int) int { return bits.Len(uint(max(budget, 1))) - 1 }

// Request adds one request. The planner first scores each rule on the request and then
// learns from the request. This takes some 10 µs at a budget of 8.
func (p *Planner) Request(h Hit) {
	p.requests++
	if h.Length <= 0 || h.Depth <= 0 {
		return
	}
	h.Depth = min(h.Depth, h.Length)
	p.scored++
	for class := range p.lost {
		p.score(class, h)
	}
	if h.Cuts > 0 {
		p.countCut(h)
	}
	p.laws.add(h)
	p.hits++
}

// reaches returns the deepest checkpoint that a rule would have given to a hit, in tokens;
// 0 = none.
func (p *Planner) reaches(r Rule, budget int, h Hit) int {
	return deepest(r.place(p.solution, h.Length, budget, p.options.BlockTokens), h.Depth)
}

func (p *Planner) score(class int, h Hit) {
	budget, block := 1<<class, p.options.BlockTokens
	if h.Branch >= block {
		alone, beside := p.reaches(p.Rule(budget), budget, h), p.reaches(p.Rule(budget-1), budget-1, h)
		if branch := h.Branch - h.Branch%block; branch <= h.Depth {
			beside = max(beside, branch)
		}
		pair := &p.branch[class][quarter(h.Branch, h.Length)]
		pair[0] = pair[0]*ruleGamma + float64(alone)
		pair[1] = pair[1]*ruleGamma + float64(beside)
	}
	lost := &p.lost[class]
	gamma := min(ruleGamma, 1-2/float64(p.scored+2)) // at first only the newer half counts, because rules start without knowledge
	for r := range rules {
		lost[r] = lost[r]*gamma + float64(h.Depth-p.reaches(r, budget, h))
	}
	for r := range rules {
		if lost[r] < lost[p.leader[class]]*ruleMargin {
			p.leader[class] = r
		}
	}
}

func quarter(depth, length int) int { return min(depth*branchQuarters/length, branchQuarters-1) }

func (p *Planner) countCut(h Hit) {
	i, j := h.Cut-1, h.Cuts-h.Cut
	for k := range maxCuts {
		p.front[k] *= ruleGamma
		p.back[k] *= ruleGamma
	}
	if i >= 0 && i < maxCuts {
		p.front[i]++
	}
	if i >= 0 && j >= 0 && j < maxCuts {
		p.back[j]++
	}
}

// Rule returns the rule that would have saved most at budgets of the same class.
func (p *Planner) Rule(budget int) Rule { return p.leader[min(classOf(budget), len(p.leader)-1)] }

// Due reports whether a Problem should be taken, solved and installed.
func (p *Planner) Due() bool { return p.requests >= p.options.Period && p.hits > 0 }

// Problem returns a copy of the statistics, to be solved on any goroutine.
func (p *Planner) Problem() Problem {
	p.requests, p.hits = 0, 0
	l := p.laws
	l.depth, l.share, l.tail = l.depth.clone(), l.share.clone(), l.tail.clone()
	return Problem{laws: l, budget: p.options.Budget}
}

// Install replaces the current solution.
func (p *Planner) Install(s *Solution) { p.solution = s }

// Why is the reason for a position. The numbers are part of the wire protocol.
type Why uint8

// The reasons for a position.
const (
	WhyBranch   Why = 1 // prompts branch here
	WhyLast     Why = 2 // the end of the prompt
	WhyBoundary Why = 3 // a cut of the application
	WhyPlaced   Why = 4 // placed by a rule
)

// String returns the reason in words.
func (w Why) String() string {
	switch w {
	case WhyBranch:
		return "branch"
	case WhyLast:
		return "last"
	case WhyBoundary:
		return "boundary"
	case WhyPlaced:
		return "placed"
	}
	return "unknown"
}

// Position is a place for a checkpoint.
type Position struct {
	Tokens int
	Why    Why
}

// Prompt is a prompt to insert.
type Prompt struct {
	Tokens int
	From   int   // computation starts at this token: earlier states cannot be captured
	Branch int   // token at which the prompt branches off earlier prompts; 0 = none
	Cuts   []int // boundaries of the application in tokens, ascending
	Budget int   // most checkpoints; 0 = the planner's
}

// Place returns at most Prompt.Budget positions in (Prompt.From, Prompt.Tokens], ascending
// multiples of the block. If checkpoints at branches have paid off, the prompt's branch
// gets one of these positions. The cuts of the application have the first claim on the
// others. The positions of the leading rule fill the remaining budget.
func (p *Planner) Place(q Prompt) []Position {
	budget := q.Budget
	if budget <= 0 || budget > p.options.Budget {
		budget = p.options.Budget
	}
	var chosen []Position
	add := func(at int, why Why) {
		at -= at % p.options.BlockTokens
		held := slices.ContainsFunc(chosen, func(c Position) bool { return c.Tokens == at })
		if at > max(q.From, 0) && at <= q.Tokens && !held && len(chosen) < budget {
			chosen = append(chosen, Position{at, why})
		}
	}
	branch := p.worthBranch(q, budget)
	forCuts := budget
	if branch && budget > 1 {
		forCuts--
	}
	for _, at := range p.cuts(q, forCuts) {
		add(at, WhyBoundary)
	}
	if branch {
		add(q.Branch, WhyBranch)
	}
	end := q.Tokens - q.Tokens%p.options.BlockTokens
	for _, at := range p.byRule(q, budget-len(chosen)) {
		if at == end {
			add(at, WhyLast)
		} else {
			add(at, WhyPlaced)
		}
	}
	slices.SortFunc(chosen, func(a, b Position) int { return a.Tokens - b.Tokens })
	return chosen
}

// worthBranch reports whether checkpoints at branches of about this depth saved at least as
// much as the rule alone. The result is true before the first hit.
func (p *Planner) worthBranch(q Prompt, budget int) bool {
	if q.Branch < p.options.BlockTokens || q.Branch > q.Tokens || q.Branch <= q.From {
		return false
	}
	pair := p.branch[min(classOf(budget), len(p.branch)-1)][quarter(q.Branch, q.Tokens)]
	return pair[1] >= pair[0]
}

// cuts returns at most m of the application's cuts. It chooses them by the number of hits
// whose last shared cut had the same number, counted from the first cut or from the last. A
// cut without such hits also has a small weight.
func (p *Planner) cuts(q Prompt, m int) []int {
	var l Law
	for i, at := range q.Cuts {
		if at <= max(q.From, 0) || at > q.Tokens || len(l.Depth) > 0 && at <= l.Depth[len(l.Depth)-1] {
			continue
		}
		w := 1.0
		if i < maxCuts {
			w += p.front[i]
		}
		if j := len(q.Cuts) - 1 - i; j < maxCuts {
			w += p.back[j]
		}
		l.Depth = append(l.Depth, at)
		l.Weight = append(l.Weight, w)
	}
	return l.Optimal(m)
}

// byRule returns at most m positions of the leading rule that are after Prompt.From. If
// some of the rule's positions are not after Prompt.From, byRule asks the rule for more
// positions.
func (p *Planner) byRule(q Prompt, m int) []int {
	if m <= 0 || q.Tokens <= 0 {
		return nil
	}
	rule := p.Rule(m)
	var best []int
	for ask := m; ask <= max(m, p.options.Budget); ask *= 2 {
		positions := rule.place(p.solution, q.Tokens, ask, p.options.BlockTokens)
		behind := positions[len(positions)-countAbove(positions, q.From):]
		if len(behind) > m {
			break
		}
		best = behind
	}
	return best
}

func countAbove(positions []int, from int) int {
	n := 0
	for _, at := range positions {
		if at > from {
			n++
		}
	}
	return n
}
