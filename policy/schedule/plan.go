package schedule

import (
	"github.com/spliced-kv/spliced/policy/cost"
)

// Pool describes the workers that a cold request may use. Times are in milliseconds.
type Pool struct {
	Workers int
	Prefill cost.Prefill // one run over a segment or a piece; a cut adds Fixed

	Cutting // limits and cost of cuts

	Comm    float64 // to fetch segments to the combining node, without the part that computation hides
	Combine float64 // to compose states and recompute the seams
}

// Cutting restricts cuts of segments and gives their cost in milliseconds.
type Cutting struct {
	HandOver         float64 // to send the states of a left piece to the worker of the right piece
	HandOverPerToken float64 // to send the rows of a left piece
	MinTokens        int     // shortest piece; 0 = 1
	GrainTokens      int     // cuts are multiples of this, such as a kernel's chunk; 0 = 1
}

func (c Cutting) handOver(tokens int) float64 { return c.HandOver + c.HandOverPerToken*float64(tokens) }

// Piece is a part of a segment on a worker's list.
type Piece struct {
	Segment    int
	Begin, End int // tokens of the segment
	After      int // worker whose first piece this one continues; -1 = this piece starts its segment
	Start      float64
	Finish     float64 // Start and Finish are in milliseconds after dispatch
}

// Plan has a list of pieces for each worker, in the order of execution. Times are in
// milliseconds.
type Plan struct {
	Workers  [][]Piece
	Makespan float64
	TTFT     float64
	Bound    float64   // no plan, with or without cuts, has a smaller makespan
	Cuts     int       // segments in two pieces
	Arrive   []float64 // arrival of each segment at the combining node; nil if transfers are in Comm
}

// Serial returns the time to first token if one instance computes all tokens as one prompt.
func (p Pool) Serial(tokens []int) float64 {
	sum := 0
	for _, n := range tokens {
		sum += n
	}
	return p.Prefill.Millis(0, sum)
}

// LPT plans whole segments, the longest first.
func (p Pool) LPT(tokens []int) Plan {
	t := p.team()
	return p.first(t.ofAssignment(tokens, LPT(t.sizes(tokens), len(t.Workers))))
}

// Whole plans whole segments, never worse than LPT.
func (p Pool) Whole(tokens []int) Plan { return p.first(p.team().Whole(tokens)) }

// Best plans whole segments, or pieces if those end earlier.
func (p Pool) Best(tokens []int) Plan { return p.first(p.team().Best(tokens)) }

// team returns the pool as a team of equal workers.
func (p Pool) team() Team {
	t := Team{Cutting: p.Cutting, Workers: make([]Worker, max(p.Workers, 1))}
	for w := range t.Workers {
		t.Workers[w] = Worker{Prefill: p.Prefill, Pieces: true}
	}
	return t
}

// first adds the time between the last segment and the first token.
func (p Pool) first(plan Plan) Plan {
	plan.Arrive = nil
	plan.TTFT = plan.Makespan + p.Comm + p.Combine
	return plan
}
