package replay

import (
	"slices"

	"github.com/spliced-kv/spliced/scripts/lab/replay/bound"
	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// bounds collects a trace of prompts, to compute the bound for caches that save states only
// where prompts end and where they branch. It keeps all prompts in memory.
type bounds struct{ trace *bound.Trace }

// newBounds returns nil if no bound is requested.
func (o *Options) newBounds(info trace.Info) *bounds {
	if !o.Bound {
		return nil
	}
	return &bounds{bound.New(bound.Options{
		StateBytes: float64(o.Model.Shape.CheckpointBytes()), TokenBytes: float64(o.Model.Shape.KVBytes),
		Unit: info.BlockTokens, Boundaries: true,
	})}
}

func (b *bounds) add(batch []trace.Request) {
	if b == nil {
		return
	}
	for i := range batch {
		b.trace.Add(slices.Clone(batch[i].Input), slices.Clone(batch[i].Output))
	}
}

// fill sets the bound of every result, except for caches with states at every block, to which
// the bound does not apply.
func (b *bounds) fill(results []Result) {
	if b == nil {
		return
	}
	of := map[int64]float64{}
	for i := range results {
		r := &results[i]
		if r.Policy == PolicyBlocks {
			continue
		}
		if _, known := of[r.CapacityBytes]; !known {
			capacity := float64(r.CapacityBytes)
			if capacity < 0 {
				capacity = float64(Unlimited)
			}
			of[r.CapacityBytes] = b.trace.Rate(capacity)
		}
		v := of[r.CapacityBytes]
		r.Bound = &v
	}
}
