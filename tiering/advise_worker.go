package tiering

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/policy/checkpoint"
	"github.com/spliced-kv/spliced/policy/cost"
)

// samplesMost is how many measured prefills of a scope may wait for the worker.
const samplesMost = 4096

// enqueueLocked leaves to the worker what a request should not wait for: fitting
// what a prefill takes, solving for placements, dropping leaves. It reports
// whether the worker has to be told.
func (a *advisor) enqueueLocked(sc *scope, samples []cost.Sample) bool {
	room := min(len(samples), samplesMost-len(sc.samples))
	sc.samples = append(sc.samples, samples[:room]...)
	a.mu.counts.SamplesDropped += uint64(len(samples) - room)
	sc.queued = sc.queued || room > 0 || sc.planner.Due()
	return sc.queued || a.mu.crowded || len(a.mu.scopes) > a.maxScopes
}

// nudge wakes the worker, which looks at everything once it does.
func (a *advisor) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// adviseWorker does what advice leaves to it until ctx ends.
func (s *Store) adviseWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.advice.wake:
			s.serveAdvice(ctx)
		}
	}
}

// serveAdvice does everything that waits now.
func (s *Store) serveAdvice(ctx context.Context) {
	a := s.advice
	for _, key := range a.waiting() {
		p, err := s.profile(key.profile)
		if err != nil {
			a.forget(key)
			continue
		}
		samples, problem := a.take(key)
		taken := p.costs.Prefills(key.tenant, samples, len(s.cfg.Tenants) == 1)
		var solution *checkpoint.Solution
		if problem != nil {
			solution = problem.Solve()
		}
		a.adopt(key, taken, solution)
	}
	for a.thin() && ctx.Err() == nil {
	}
}

// waiting lists the scopes that the worker was told of, in a fixed order; all of
// them when some must be of profiles that are not registered any more.
func (a *advisor) waiting() []scopeKey {
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
func (a *advisor) take(key scopeKey) ([]cost.Sample, *checkpoint.Problem) {
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

// adopt settles what the worker has done for a scope. taken is how many measured
// prefills made sense.
func (a *advisor) adopt(key scopeKey, taken int, solution *checkpoint.Solution) {
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
func (a *advisor) forget(key scopeKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.scopes, key)
}

// thin drops some leaves, while there are to be dropped any: until an eighth is
// free.
func (a *advisor) thin() (again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.crowded {
		a.mu.crowded = !a.dropLocked(room{a.maxNodes / 8, a.maxBytes / 8}, clockSteps)
	}
	return a.mu.crowded
}
