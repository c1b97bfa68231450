// Package prefixcache simulates the prefix cache of a model whose layers save states and
// rows of attention: the tokens that requests would hit in a memory of a given size. A
// request is looked up, then its prompt and its answer are cached. Three caches share the
// package:
//
//   - NewBlocks (vLLM+ in Marconi's evaluation): a state for every block of tokens
//     and eviction of the least recent block without children.
//   - NewPathLRU (SGLang+) and NewMarconi: a radix tree with a state at every node,
//     where prompts end and branch, with the released rules of Marconi's
//     simulator, including its bugs as options (Quirks). They agree with its numbers
//     and serve as references.
//   - New: the same tree and admission under any policy.Eviction. Nodes with at most
//     one child can be evicted: a leaf frees its state and the rows of its edge, a
//     node in the middle its state only, and its rows pass to the child. The cached
//     bytes never exceed the capacity.
//
// A simulation moves no data: nodes hold byte counts. It is pure, takes the time from its
// caller, and belongs to one goroutine.
package prefixcache

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
)

// Request is one prompt and its generated tokens. The slices are not kept.
type Request struct {
	At     time.Time // passed to the policy; simulations of released caches have their own clock
	Input  []uint32
	Output []uint32
}

// Hit is the cached part of a request's input.
type Hit struct {
	Input  int // tokens
	Tokens int // of these, the ones that need no prefill
}

// Cache is a simulated prefix cache.
type Cache interface {
	// Serve looks up a request's input, then caches its input and output.
	Serve(r Request) Hit
	Stats() Stats
}

// Config holds the settings common to all caches.
type Config struct {
	Shape         cost.Shape
	CapacityBytes int64
	SymbolTokens  int // tokens per symbol, such as a hashed block; 0 = 1
}

func (c Config) symbolTokens() int { return max(c.SymbolTokens, 1) }

// bytes returns the size of states and rows of symbols.
func (c Config) bytes(states, symbols int) int64 {
	return int64(states)*c.Shape.CheckpointBytes() + c.Shape.RowBytes(symbols*c.symbolTokens())
}

// Stats counts since the cache was created.
type Stats struct {
	Requests    int
	InputTokens int64
	HitTokens   int64
	HitRequests int     // requests with a hit
	FLOPsSaved  float64 // of prefill, saved by hits
	Evictions   int     // evicted nodes or blocks
	Refused     int     // requests that were not cached because they could not fit
	Bytes       int64   // cached now
	PeakBytes   int64
	States      int   // cached now
	Steps       int64 // edges followed
}

// HitRate returns the share of input tokens that needed no prefill.
func (s Stats) HitRate() float64 {
	if s.InputTokens == 0 {
		return 0
	}
	return float64(s.HitTokens) / float64(s.InputTokens)
}

// serve counts a lookup of symbols of which hit were cached, found in a number of steps
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
