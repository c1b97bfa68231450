package replay

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/scripts/lab/replay/prefixcache"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// The policies outside package policy.
const (
	PolicyBlocks  = "vllm+"
	PolicyPath    = "sglang+"
	PolicyMarconi = "marconi"       // with the released code's bugs; alpha is tuned once
	PolicyFixed   = "marconi-fixed" // the same without the bugs
	PolicyPrefix  = "prefix"        // lists of segments: prefix caching, unlimited
)

// blockTokens is the block size of the cache with a state for every block, as in Marconi's
// evaluation.
const blockTokens = 32

// bootstrap is MarconiOptions.Bootstrap of the simulations.
const bootstrap = 5

// promptCache is a simulated prefix cache.
type promptCache struct{ prefixcache.Cache }

func (c promptCache) serve(r *trace.Request, now time.Time) (input, hit int) {
	h := c.Serve(prefixcache.Request{At: now, Input: r.Input, Output: r.Output})
	return h.Input, h.Tokens
}

func (c promptCache) totals() Counts {
	s := c.Stats()
	out := Counts{
		Evictions: int64(s.Evictions), Refused: int64(s.Refused), UsedBytes: s.Bytes, PeakBytes: s.PeakBytes, States: int64(s.States), Steps: s.Steps,
	}
	if m, ok := c.Cache.(*prefixcache.Marconi); ok {
		alpha, _ := m.Alpha()
		out.Alpha = &alpha
	}
	return out
}

// promptSimulation returns the cache of a policy by name. A name may end in a fixed weight, as
// in "marconi:0.3" and "marconi-fixed:0.3".
func promptSimulation(name string, o *Options, info trace.Info, capacity int64) (simulation, error) {
	c := prefixcache.Config{Shape: o.Model.Shape, CapacityBytes: capacity, SymbolTokens: info.BlockTokens}
	base, weight, static := strings.Cut(name, ":")
	switch {
	case base == PolicyMarconi || base == PolicyFixed:
		m := prefixcache.MarconiOptions{Bootstrap: bootstrap}
		if base == PolicyMarconi {
			m.Quirks = prefixcache.AsReleased()
		}
		if static {
			var err error
			if m.Alpha, err = strconv.ParseFloat(weight, 64); err != nil || !(m.Alpha >= 0 && m.Alpha <= 1000) {
				return nil, fmt.Errorf("policy %q: the weight is not a number from 0 to 1000: %w", name, ErrPolicy)
			}
			m.Bootstrap = 0
		}
		return promptCache{prefixcache.NewMarconi(c, m)}, nil
	case name == PolicyPath:
		return promptCache{prefixcache.NewPathLRU(c)}, nil
	case name == PolicyBlocks:
		return promptCache{prefixcache.NewBlocks(c, prefixcache.BlockOptions{
			Symbols: max(blockTokens/info.BlockTokens, 1), States: max(info.BlockTokens/blockTokens, 1),
		})}, nil
	}
	eviction, ok := policy.Named(name)
	if !ok {
		return nil, fmt.Errorf("policy %q for prompts, want some of %s: %w", name, strings.Join(PromptPolicies(), ", "), ErrPolicy)
	}
	options := prefixcache.Options{Config: c}
	if o.Model.measured || !c.Shape.Known() {
		options.Saved = o.Model.Prefill.Marginal
	}
	return promptCache{prefixcache.New(options, eviction())}, nil
}

// PromptPolicies returns the names for traces of prompts.
func PromptPolicies() []string {
	return []string{"lru", "gdsf", "default", PolicyMarconi, PolicyFixed, PolicyPath, PolicyBlocks}
}

// SegmentPolicies returns the names for lists of segments.
func SegmentPolicies() []string {
	return []string{"lru", "gdsf", "default", PolicyMarconi, PolicyPrefix}
}
