// Package prefixcache simulates the prefix cache of a hybrid model, which caches states and
// attention rows. It computes how many tokens of each request would be hits in a memory of a
// given size. A simulation looks up a request, and then caches its prompt and its answer. The
// package has three kinds of cache:
//
//   - NewBlocks (vLLM+ in Marconi's evaluation): a state for every block of tokens
//     and eviction of the least recent block without children.
//   - NewPathLRU (SGLang+) and NewMarconi: a radix tree with a state at every node, that is,
//     where prompts end and branch. They have the rules of Marconi's released simulator, and its
//     bugs as options (Quirks). They reproduce its numbers and serve as references.
//   - New: the same tree and admission under any policy.Eviction. Nodes with at most one child
//     can be evicted. Evicting a leaf frees its state and the rows of its edge. Evicting a node
//     with one child frees only its state, and its rows pass to the child. The cached bytes
//     never exceed the capacity.
//
// A simulation moves no data: nodes hold byte counts. It has no clock and no I/O, takes the time
// from its caller, and must be used by one goroutine at a time.
package prefixcache

import (
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
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
	Tokens int // tokens of the input that need no prefill
}

// Cache is a simulated prefix cache.
type Cache interface {
	// Serve looks up a request's input, then caches its input and output.
	Serve(r Request) Hit
	Stats() Stats
}

// Config holds the settings common to all caches.
type Config struct {
	Shape         flops.Shape
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

// serve counts a lookup. symbols is the number of symbols that were looked up, and hit is the
// number of them that were cached. steps is the number of edges that the lookup followed.
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
