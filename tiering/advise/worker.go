package advise

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
)

// samplesMost is how many measured prefills of a scope may wait for the worker, those of one
// engine up to an eighth of them.
const samplesMost = 4096

// enqueueLocked leaves to the worker what a request should not wait for: fitting
// what a prefill takes, solving for placements, dropping leaves. It reports
// whether the worker has to be told.
func (a *Advisor) enqueueLocked(sc *scope, samples []cost.Sample) bool {
	fit := min(len(samples), samplesMost-len(sc.samples))
	if fit > 0 {
		same := 0
		for i := range sc.samples {
			if sc.samples[i].Source == samples[0].Source {
				same++
			}
		}
		fit = min(fit, max(0, samplesMost/8-same))
	}
	sc.samples = append(sc.samples, samples[:fit]...)
	a.mu.counts.SamplesDropped += uint64(len(samples) - fit)
	sc.queued = sc.queued || fit > 0 || sc.planner.Due()
	return sc.queued || a.mu.crowded || len(a.mu.scopes) > a.maxScopes
}

// nudge wakes the worker, which looks at everything once it does.
func (a *Advisor) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run does what advice leaves to it until ctx ends.
func (a *Advisor) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			a.Work(ctx)
		}
	}
}

// Work does everything that waits now. Run calls it; it is exported for owners
// without Run, and never runs twice at once.
func (a *Advisor) Work(ctx context.Context) {
	for _, key := range a.waiting() {
		learned, err := a.store.Costs(key.profile)
		if err != nil {
			a.forget(key)
			continue
		}
		samples, problem := a.take(key)
		taken := learned.Measured(key.tenant, a.now(), samples, len(a.owners) == 1)
		var solution *checkpoint.Solution
		if problem != nil {
			solution = problem.Solve()
		}
		a.adopt(key, taken, solution)
	}
	for a.trim() && ctx.Err() == nil {
	}
}

// waiting lists the scopes that the worker was told of, in a fixed order; all of
// them when some must be of profiles that are not registered any more.
func (a *Advisor) waiting() []scopeKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	var keys []scopeKey
	for key, sc := range a.mu.scopes {
		if sc.queued || len(a.mu.scopes) > a.maxScopes {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(x, y scopeKey) int {
		if x.profile != y.profile {
			return int(x.profile) - int(y.profile)
		}
		return int(x.tenant) - int(y.tenant)
	})
	return keys
}

// take is the worker's share of a scope; nil when there is nothing to solve.
func (a *Advisor) take(key scopeKey) ([]cost.Sample, *checkpoint.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sc := a.mu.scopes[key]
	samples := sc.samples
	sc.samples, sc.queued = nil, false
	if !sc.planner.Due() {
		return samples, nil
	}
	problem := sc.planner.Problem()
	return samples, &problem
}

// adopt takes over what the worker has done for a scope. taken is how many measured
// prefills made sense.
func (a *Advisor) adopt(key scopeKey, taken int, solution *checkpoint.Solution) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.counts.Samples += uint64(taken)
	if solution != nil {
		a.mu.scopes[key].planner.Install(solution)
		a.mu.counts.Solved++
	}
}

// forget drops what is known of a scope whose profile is not registered any more.
// Its prompts are never asked for again, so that the clock drops them first.
func (a *Advisor) forget(key scopeKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.scopes, key)
}

// trim drops some leaves, if the tree is crowded, until an eighth is free. It
// reports whether there is more to drop.
func (a *Advisor) trim() (again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.mu.tree; a.mu.crowded {
		a.mu.crowded = !t.drop(room{t.most.nodes / 8, t.most.bytes / 8}, clockSteps)
	}
	return a.mu.crowded
}
