package schedule

import (
	"github.com/spliced-kv/spliced/policy/cost"
)

// Pool is the workers that a cold request may use and what work takes there, in
// milliseconds.
type Pool struct {
	Workers int
	Prefill cost.Prefill // one run over a segment or a piece of it; Fixed is what a cut adds

	Cutting // where segments may be cut

	Comm    float64 // to bring segments to the combine node, as far as computing does not hide it
	Combine float64 // to compose states and compute the seams again
}

// Cutting says where segments may be cut, and what that costs in milliseconds.
type Cutting struct {
	HandOver         float64 // to bring the states of a left piece to the worker of the right one
	HandOverPerToken float64 // to bring its rows
	MinTokens        int     // shortest piece; 0 = 1
	GrainTokens      int     // cuts fall on multiples of it, such as the chunk of a kernel; 0 = 1
}

func (c Cutting) handOver(tokens int) float64 { return c.HandOver + c.HandOverPerToken*float64(tokens) }

// Piece is a part of a segment on a worker's list.
type Piece struct {
	Segment    int
	Begin, End int // tokens of the segment
	After      int // worker whose first piece it goes on from; -1 = it begins its segment
	Start      float64
	Finish     float64 // milliseconds after dispatch
}

// Plan is a list of pieces for each worker, in the order to run them.
type Plan struct {
	Workers  [][]Piece
	Makespan float64
	TTFT     float64
	Bound    float64   // no plan of these runs, cut or whole, has a smaller makespan
	Cuts     int       // segments in two pieces
	Arrive   []float64 // when each segment is with the node that combines; nil where bringing them is in Comm
}

// Serial is the time to first token of one instance that computes all tokens as
// one prompt.
func (p Pool) Serial(tokens []int) float64 {
	sum := 0
	for _, n := range tokens {
		sum += n
	}
	return p.Prefill.Millis(0, sum)
}

// LPT plans whole segments by the longest first.
func (p Pool) LPT(tokens []int) Plan {
	t := p.team()
	return p.first(t.ofAssignment(tokens, LPT(t.sizes(tokens), len(t.Workers))))
}

// Whole plans whole segments, never worse than LPT.
func (p Pool) Whole(tokens []int) Plan { return p.first(p.team().Whole(tokens)) }

// Best plans whole segments, or pieces where those end earlier.
func (p Pool) Best(tokens []int) Plan { return p.first(p.team().Best(tokens)) }

// team is the pool as workers that are all alike.
func (p Pool) team() Team {
	t := Team{Cutting: p.Cutting, Workers: make([]Worker, max(p.Workers, 1))}
	for w := range t.Workers {
		t.Workers[w] = Worker{Prefill: p.Prefill, Pieces: true}
	}
	return t
}

// first adds what stands between the last segment and the first token.
func (p Pool) first(plan Plan) Plan {
	plan.Arrive = nil
	plan.TTFT = plan.Makespan + p.Comm + p.Combine
	return plan
}
