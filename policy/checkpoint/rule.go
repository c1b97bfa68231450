package checkpoint

import (
	"slices"
	"sort"
)

// Rule is a way to place checkpoints without knowing where a prompt branches.
type Rule uint8

// The rules. If several rules are equally good, the first one wins. So before the first
// hit, spacing is even, which is optimal in the worst case.
const (
	RuleEven  Rule = iota // Balanced
	RuleEnd               // the end of the prompt, and evenly before it
	RuleBlock             // equal steps of whole blocks
	RuleDepth             // the dynamic program over depths
	RuleShare             // the dynamic program over shares of the length
	RuleTail              // the dynamic program over distances from the end
	RuleDepthShare
	RuleTailDepth

	rules
)

// String returns the name of the rule.
func (r Rule) String() string {
	return [...]string{"even", "end", "block", "depth", "share", "tail", "depth and share", "tail and depth"}[r]
}

// place returns at most m positions in a prompt of n tokens, in multiples of block. If s is
// nil, the rules that need a solution place checkpoints as RuleEven does.
func (r Rule) place(s *Solution, n, m, block int) []int {
	switch {
	case m <= 0:
		return nil
	case r == RuleBlock:
		return aligned(n, m, block)
	case r == RuleEnd:
		return join(Align([]int{n}, block), Align(Balanced(n, m-1), block))
	case r == RuleEven || s == nil:
		return Align(Balanced(n, m), block)
	}
	var positions []int
	switch r {
	case RuleDepth:
		positions = s.byDepth(n, m)
	case RuleShare:
		positions = s.byShare(n, m)
	case RuleTail:
		positions = s.byTail(n, m)
	case RuleDepthShare:
		positions = s.byDepth(n, m-m/2)
		positions = join(positions, s.byShare(n, m-len(positions)))
	case RuleTailDepth:
		positions = s.byTail(n, m-m/2)
		positions = join(positions, s.byDepth(n, m-len(positions)))
	}
	return fill(positions, n, m, block)
}

// aligned returns at most m positions in equal steps of whole blocks.
func aligned(n, m, block int) []int {
	if n <= 0 || m <= 0 {
		return nil
	}
	return Every(n, (n+block*m-1)/(block*m)*block)
}

// fill spends the budget that the dynamic program left unused, on the widest gaps. The
// program leaves budget if more checkpoints would have saved nothing on past hits.
func fill(positions []int, n, m, block int) []int {
	spare := m - len(positions)
	if spare <= 0 {
		return positions
	}
	step := 1 + sort.Search(n/block, func(i int) bool { return splits(positions, n, (i+1)*block) <= spare })
	step *= block
	extra := make([]int, 0, spare)
	last := 0
	for _, at := range append(slices.Clone(positions), n) {
		pieces := (at - last + step - 1) / step
		for i := 1; i < pieces && len(extra) < spare; i++ {
			extra = append(extra, last+i*(at-last)/pieces)
		}
		last = at
	}
	return join(positions, Align(extra, block))
}

// splits returns the number of positions to add so that no gap is wider than step.
func splits(positions []int, n, step int) int {
	count, last := 0, 0
	for _, at := range positions {
		count += (at - last + step - 1) / step
		last = at
	}
	return count + (n-last+step-1)/step - 1 - len(positions)
}

// join merges two ascending lists.
func join(a, b []int) []int {
	all := append(a, b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// deepest returns the last of ascending positions that is at most depth; 0 = there is none.
func deepest(positions []int, depth int) int {
	if i := sort.SearchInts(positions, depth+1); i > 0 {
		return positions[i-1]
	}
	return 0
}
