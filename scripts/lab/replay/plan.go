package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// ErrCapacity means that a replay requires a capacity.
var ErrCapacity = errors.New("-capacity is needed, such as 40GB, or unlimited")

// ErrBound means that there is no bound for this kind of trace.
var ErrBound = errors.New("-bound is for traces of prompts")

// Defaults of a replay.
var (
	defaultPolicies    = []string{"lru", PolicyMarconi, "gdsf", "default"}
	defaultCheckpoints = []int{1, 2, 4, 8, 16, 32, 64}
)

// mostRuns bounds the number of simulations in one pass over a trace.
const mostRuns = 256

// complete sets defaults.
func (o *Options) complete(info trace.Info) error {
	if o.Model.Name == "" {
		preset := PresetMarconi
		if info.Kind == trace.FlatPieces {
			preset = PresetGDN
		}
		measured := o.Model
		o.Model, _ = Preset(preset)
		if measured.measured {
			o.Model.SetPrefill(measured.Prefill)
		}
	}
	switch {
	case o.Bound && info.Kind != trace.Prompts:
		return ErrBound
	case info.Kind == trace.Overlaps:
		if len(o.Policies) == 0 {
			o.Policies = PlacementPolicies()
		}
		if len(o.Checkpoints) == 0 {
			o.Checkpoints = defaultCheckpoints
		}
	case len(o.Capacities) == 0:
		return ErrCapacity
	case len(o.Policies) == 0:
		o.Policies = defaultPolicies
	}
	o.Policies = unique(o.Policies)
	o.Capacities = unique(o.Capacities)
	o.Checkpoints = unique(o.Checkpoints)
	slices.Sort(o.Capacities)
	slices.Sort(o.Checkpoints)
	return nil
}

func unique[T comparable](list []T) []T {
	var out []T
	for _, v := range list {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// plan returns a simulation for each policy at each capacity.
func (o *Options) plan(info trace.Info) ([]*run, error) {
	var runs []*run
	add := func(r *run, err error) error {
		if err == nil && len(runs) == mostRuns {
			err = fmt.Errorf("more than %d runs at once", mostRuns)
		}
		r.model = &o.Model
		runs = append(runs, r)
		return err
	}
	for _, name := range o.Policies {
		if info.Kind == trace.Overlaps {
			for _, most := range o.Checkpoints {
				sim, err := newPlacement(name, most)
				if err := add(&run{policy: name, checkpoints: most, capacity: int64(most) * o.Model.Shape.CheckpointBytes(), sim: sim}, err); err != nil {
					return nil, err
				}
			}
			continue
		}
		for _, capacity := range o.Capacities {
			sim, err := o.simulate(name, info, capacity)
			if err := add(&run{policy: name, capacity: capacity, sim: sim}, err); err != nil {
				return nil, err
			}
			if name == PolicyPrefix {
				runs[len(runs)-1].capacity = Unlimited
				break
			}
		}
	}
	return runs, nil
}

func (o *Options) simulate(name string, info trace.Info, capacity int64) (simulation, error) {
	if info.Kind == trace.FlatPieces {
		return segmentSimulation(name, o, capacity)
	}
	return promptSimulation(name, o, info, capacity)
}
