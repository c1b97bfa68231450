package advise

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
)

// samplesMost is the maximum number of measured prefills of a scope that wait for the
// worker. At most an eighth of them may come from one engine.
const samplesMost = 4096

// enqueueLocked queues work that a request should not wait for: fitting costs, solving
// placements, dropping leaves. It reports whether to wake the worker.
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

// nudge wakes the worker, which then does all queued work.
func (a *Advisor) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run does the queued work until ctx ends.
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

// Work does all work that is queued now. Run calls it. It is exported for callers that do
// not use Run. Calls must not overlap.
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

// waiting lists the queued scopes in a fixed order. If there are more scopes than
// registered profiles can have, it lists all scopes, so that Work finds those to forget.
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

// take removes the samples of a scope and returns them, with the placement problem to
// solve; nil if no solution is due.
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

// adopt installs the worker's result for a scope. The parameter taken is the number of
// valid samples.
func (a *Advisor) adopt(key scopeKey, taken int, solution *checkpoint.Solution) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.counts.Samples += uint64(taken)
	if solution != nil {
		a.mu.scopes[key].planner.Install(solution)
		a.mu.counts.Solved++
	}
}

// forget drops a scope whose profile is no longer registered. Its prompts are not used any
// more, so the method drop removes them before others.
func (a *Advisor) forget(key scopeKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.scopes, key)
}

// trim drops some leaves if the tree is crowded, until an eighth of the tree is free. The
// result is true if the tree is still crowded.
func (a *Advisor) trim() (again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.mu.tree; a.mu.crowded {
		a.mu.crowded = !t.drop(room{t.most.nodes / 8, t.most.bytes / 8}, clockSteps)
	}
	return a.mu.crowded
}
