package replay

import (
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// placement is a simulation that saves states of each prompt at the positions that a placer
// chooses when the prompt arrives, and resumes later prompts from these states.
type placement struct {
	placer  placer
	held    [][]int32 // by request
	overlap int64     // tokens shared with earlier prompts
	states  int64
}

// placer chooses where to save states.
type placer interface {
	// saw tells the placer how far a prompt overlaps with earlier ones. It is called before
	// place for the same prompt, unless the prompt overlaps with none.
	saw(o trace.Overlap)
	// place returns ascending positions for a prompt.
	place(o trace.Overlap) []int
}

// stateBlock is the distance in tokens between two positions where a state can be saved. It is
// the step of the kernels that compute states.
const stateBlock = 64

func newPlacement(name string, most int) (*placement, error) {
	p, ok := placerNamed(name, most)
	if !ok {
		return nil, fmt.Errorf("placement %q, want some of %s: %w", name, strings.Join(PlacementPolicies(), ", "), ErrPolicy)
	}
	if most < 1 || most > 4096 {
		return nil, fmt.Errorf("%d states a prompt is not 1 to 4096: %w", most, ErrPolicy)
	}
	return &placement{placer: p}, nil
}

func (p *placement) serve(r *trace.Request, _ time.Time) (input, hit int) {
	o := r.Overlap
	if o.Entry >= 0 && o.Depth > 0 {
		for _, at := range p.held[o.Entry] {
			if int(at) <= o.Depth {
				hit = int(at)
			}
		}
		p.overlap += int64(o.Depth)
		p.placer.saw(o)
	}
	positions := p.placer.place(o)
	kept := make([]int32, len(positions))
	for i, at := range positions {
		kept[i] = int32(at)
	}
	p.held = append(p.held, kept)
	p.states += int64(len(kept))
	return o.Tokens, hit
}

func (p *placement) totals() Counts {
	return Counts{States: p.states, Admitted: p.states, Steps: int64(len(p.held))}
}

// The placements by name.
const (
	placeBalanced = "balanced"
	placeBlock    = "block"
	placeSqrt     = "sqrt"
	placeLog      = "log"
	placeDP       = "dp"
	placeBoundary = "boundary"
	placeDefault  = "default"
)

// PlacementPolicies returns the names for files of overlap depths.
func PlacementPolicies() []string {
	return []string{placeBalanced, placeBlock, placeLog, placeSqrt, placeDP, placeDefault, placeBoundary}
}

func placerNamed(name string, most int) (placer, bool) {
	switch name {
	case placeBalanced:
		return fixed(func(n int) []int { return checkpoint.Align(checkpoint.Balanced(n, most), stateBlock) }), true
	case placeBlock:
		return fixed(func(n int) []int {
			return checkpoint.Every(n, (n+stateBlock*most-1)/(stateBlock*most)*stateBlock)
		}), true
	case placeSqrt:
		return fixed(func(n int) []int { return checkpoint.Align(checkpoint.Sqrt(n), stateBlock) }), true
	case placeLog:
		return fixed(func(n int) []int { return checkpoint.Align(checkpoint.Logarithmic(n, most), stateBlock) }), true
	case placeDP:
		return &depthProgram{most: most, seen: checkpoint.NewHistogram(histogramGamma)}, true
	case placeDefault:
		return newPlanned(most, false), true
	case placeBoundary:
		return newPlanned(most, true), true
	}
	return nil, false
}

// fixed chooses positions by length alone.
type fixed func(n int) []int

func (f fixed) saw(trace.Overlap)           {}
func (f fixed) place(o trace.Overlap) []int { return f(o.Tokens) }

// The settings of the Sparse Prefix Caching paper.
const (
	histogramGamma = 0.99
	solveEvery     = 10 // requests
)

// depthProgram is the paper's online placement. It has one histogram of absolute overlap depths
// for all prompts, and solves for the best positions every few requests. Until the first
// solution it uses balanced placement.
type depthProgram struct {
	most     int
	seen     *checkpoint.Histogram // blocks
	requests int
	solved   *checkpoint.Schedule // nil = not yet
}

func (d *depthProgram) saw(o trace.Overlap) { d.seen.Add(o.Depth / stateBlock) }

func (d *depthProgram) place(o trace.Overlap) []int {
	d.requests++
	if d.requests%solveEvery == 0 && !d.seen.Empty() {
		d.solved = d.seen.Law().Solve(d.most)
	}
	if d.solved == nil {
		return checkpoint.Align(checkpoint.Balanced(o.Tokens, d.most), stateBlock)
	}
	positions := d.solved.Place(o.Tokens/stateBlock, d.most)
	for i := range positions {
		positions[i] *= stateBlock
	}
	return positions
}

// planned is our own planner. If cuts is set, it knows the application's boundary in each
// prompt; otherwise it uses only what it learns.
type planned struct {
	*checkpoint.Planner
	most     int
	cuts     bool
	branches []int // by request: where it left known prefixes
}

func newPlanned(most int, cuts bool) *planned {
	return &planned{Planner: checkpoint.New(checkpoint.Options{BlockTokens: stateBlock, Budget: most}), most: most, cuts: cuts}
}

func (p *planned) saw(o trace.Overlap) {}

func (p *planned) place(o trace.Overlap) []int {
	var hit checkpoint.Hit
	if o.Entry >= 0 && o.Depth > 0 {
		hit = checkpoint.Hit{Depth: o.Depth, Length: o.EntryLen, Branch: p.branches[o.Entry]}
	}
	p.Request(hit)
	if p.Due() {
		p.Install(p.Problem().Solve())
	}
	q := checkpoint.Prompt{Tokens: o.Tokens, Branch: o.Depth, Budget: p.most}
	if p.cuts && o.Boundary > 0 {
		q.Cuts = []int{o.Boundary}
	}
	p.branches = append(p.branches, o.Depth)
	var out []int
	for _, at := range p.Place(q) {
		out = append(out, at.Tokens)
	}
	return out
}
