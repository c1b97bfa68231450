// Package prefixcache simulates the prefix cache of a model whose layers keep
// states and rows of attention: what requests would hit, in tokens, of a memory
// of so many bytes. A request is looked up, then its prompt and its answer are
// kept. Three caches share the package:
//
//   - NewBlocks (vLLM+ in Marconi's evaluation): a state for every block of tokens
//     and eviction of the least recent block that nothing extends.
//   - NewPathLRU (SGLang+) and NewMarconi: a radix tree with a state at every node,
//     that is where prompts end and where they part, with the released rules of
//     Marconi's simulator, its slips among them as options (Quirks). They agree
//     with its numbers; they are for measuring against.
//   - New: the same tree and admission under any policy.Eviction. What may leave
//     is a node with at most one child: a leaf gives back its state and the rows of
//     its edge, a node in the middle its state only, its rows pass to the child.
//     The bytes held never exceed the capacity.
//
// A simulation moves no data: nodes hold byte counts. It is pure, takes the time
// from its caller, and belongs to one goroutine.
package prefixcache

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
)

// Request is one prompt and what was generated. The slices are not kept.
type Request struct {
	At     time.Time // given to the policy; simulations of released caches have a clock of their own
	Input  []uint32
	Output []uint32
}

// Hit is what the cache held of a request's input.
type Hit struct {
	Input  int // tokens
	Tokens int // of these, those that need no prefill
}

// Cache is a simulated prefix cache.
type Cache interface {
	// Serve looks up a request's input, then keeps its input and output.
	Serve(r Request) Hit
	Stats() Stats
}

// Config is what all caches need to know.
type Config struct {
	Shape         cost.Shape
	CapacityBytes int64
	SymbolTokens  int // tokens that one symbol stands for, such as a hashed block; 0 = 1
}

func (c Config) symbolTokens() int { return max(c.SymbolTokens, 1) }

// bytes is what states and rows of symbols take.
func (c Config) bytes(states, symbols int) int64 {
	return int64(states)*c.Shape.CheckpointBytes() + c.Shape.RowBytes(symbols*c.symbolTokens())
}

// Stats counts since the cache was made.
type Stats struct {
	Requests    int
	InputTokens int64
	HitTokens   int64
	HitRequests int     // requests with a hit
	FLOPsSaved  float64 // of prefill, by hits
	Evictions   int     // nodes or blocks that left
	Refused     int     // requests that were not kept because they could not fit
	Bytes       int64   // held now
	PeakBytes   int64
	States      int   // held now
	Steps       int64 // edges followed
}

// HitRate is the share of input tokens that needed no prefill.
func (s Stats) HitRate() float64 {
	if s.InputTokens == 0 {
		return 0
	}
	return float64(s.HitTokens) / float64(s.InputTokens)
}

// serve counts a lookup of symbols of which hit were held, found by so many steps
// along edges.
func (s *Stats) serve(c Config, symbols, hit, steps int) Hit {
	h := Hit{symbols * c.symbolTokens(), hit * c.symbolTokens()}
	s.Requests++
	s.InputTokens += int64(h.Input)
	s.HitTokens += int64(h.Tokens)
	if hit > 0 {
		s.HitRequests++
	}
	s.FLOPsSaved += c.Shape.FLOPs(h.Tokens)
	s.Steps += int64(steps)
	return h
}
