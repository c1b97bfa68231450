package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/schedule"
)

// parallelSections returns the sections of the suite parallel: segments computed on several
// nodes, with modelled engines.
func parallelSections() []section { return []section{{"parallel", parallelRows}} }

// The numbers of HYPIC's Fig. 14 for 8 workers, with times in milliseconds. A segment of 2,400
// tokens takes 176.8. The 11 segments as one prompt on one instance take 2,321. Collecting the
// segments takes 41, and combining them 88. The paper does not report the fixed cost of a run;
// the benchmark assumes 5 (figureRun).
const (
	figureWorkers  = 8
	figureSegments = 11
	figureTokens   = 2400
	figureSegment  = 176.8
	figureSerial   = 2321.0
	figureComm     = 378.0 - 249 - 88
	figureCombine  = 88.0
	figureRun      = 5.0

	// figureScale is the factor by which the modelled engines are slower than the paper's
	// engines. With this factor, transfers within this machine do not take a larger share of the
	// time than in the paper.
	figureScale = 20
)

// figurePrefill returns the prefill cost of the paper's engine, scaled.
func figurePrefill(scale float64) cost.Prefill {
	const n, count = figureTokens, figureSegments
	squared := (figureSerial - count*figureSegment + (count-1)*figureRun) / (n * n * (count*count - count))
	perToken := (figureSegment - figureRun - squared*n*n) / n
	return cost.Prefill{Fixed: scale * figureRun, PerToken: scale * perToken, PerTokenSquared: scale * squared}
}

// parallelRows runs the paper's request with no cached segment over daemons on this machine,
// first with whole segments, then with segments cut in pieces. Engines simulate computation by
// waiting. Plans, jobs, transferred bytes and the peers' port are real.
func parallelRows(ctx context.Context, s *session) (err error) {
	scale := float64(figureScale)
	if s.effort == 0 {
		scale /= 4 // a short run that only checks that all rows appear
	}
	t, err := startTeam(ctx, s, figureWorkers, figurePrefill(scale))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.wait(ctx); err != nil {
		return err
	}
	collect, err := t.collect(ctx)
	if err != nil {
		return err
	}
	bytes := moved(t.profile.SegmentLayout(figureTokens - t.profile.HeadExclusion(8) - 8))
	s.add(row("parallel/collect 8 segments", "ms", collect, scale*figureComm, bar{ratioAtMost: 1}))
	s.report.Notes = append(s.report.Notes, fmt.Sprintf(
		"parallel: modelled engines, %g times slower than the paper's; segments of %.1f MiB, %d daemons. Limits are the paper's figures times %g, or the plan.",
		scale, float64(bytes)/(1<<20), len(t.daemons), scale))
	pool := schedule.Pool{Workers: figureWorkers, Prefill: t.prefill}
	for i, mode := range []struct {
		name   string
		pieces bool
	}{{"whole", false}, {"pieces", true}} {
		var runs []run
		for k := range max(1, s.rounds(3)) {
			r, err := t.request(ctx, 100+10*i+k, mode.pieces)
			if err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			s.progress("parallel/%s: computed after %.0f ms, here after %.0f, planned %.0f, %d cuts", mode.name, r.computed, r.here, r.planned, r.cuts)
			runs = append(runs, r)
		}
		slices.SortFunc(runs, func(a, b run) int { return int(a.computed - b.computed) })
		t.rows(s, mode.name, runs[len(runs)/2], scale, &pool)
	}
	return nil
}

// run is the result of one request.
type run struct {
	computed, here, planned float64 // ms since the request: end of the last run, arrival of the last row, planned arrival
	cuts                    int
}

func (t *team) rows(s *session, name string, r run, scale float64, pool *schedule.Pool) {
	tokens := slices.Repeat([]int{figureTokens}, figureSegments)
	plan := pool.LPT(tokens)
	bars := struct{ computed, speedup bar }{bar{ratioAtMost: 1.05}, bar{atLeast: 4.57, atMost: 5.05, all: true}}
	limit := plan.Makespan
	if name == "pieces" {
		limit = plan.Bound
		bars.computed, bars.speedup = bar{ratioAtMost: 1.1}, bar{atLeast: 6.1}
	}
	add := func(what, unit string, value, limit float64, b bar) {
		s.add(row("parallel/"+name+" "+what, unit, value, limit, b))
	}
	add("all here, of its plan", "ms", r.here, r.planned, bar{ratioAtMost: 1.05})
	add("computed, of LPT or the bound", "ms", r.computed, limit, bars.computed)
	add("speedup, comm and combine as the paper's", "x", scale*figureSerial/(r.computed+scale*(figureComm+figureCombine)), 0, bars.speedup)
	add("speedup, comm as measured", "x", scale*figureSerial/(r.here+scale*figureCombine), 0, bar{})
	add("cuts", "segments", float64(r.cuts), 0, bar{})
}

// wait waits until all workers take part in a plan.
func (t *team) wait(ctx context.Context) error {
	for i := 0; ; i++ {
		p, err := t.plan(ctx, t.segments(1000+i, figureWorkers), false)
		if err != nil {
			return err
		}
		seen := map[uint32]bool{}
		for _, r := range p.Rows {
			seen[r.Worker] = true
		}
		if p.ID != 0 {
			if err := t.models[0].EndPlan(ctx, p.ID); err != nil {
				return err
			}
		}
		switch {
		case len(seen) == figureWorkers && !seen[0]:
			return t.idle(ctx)
		case i > 300:
			return fmt.Errorf("%d of %d workers take part: alone %d", len(seen), figureWorkers, p.Alone)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// idle waits until the engines have ended the runs that they had started.
func (t *team) idle(ctx context.Context) error {
	for {
		t.mu.Lock()
		before := t.runs
		t.mu.Unlock()
		select {
		case <-time.After(time.Duration(1.3 * t.prefill.Millis(0, figureTokens) * 1e6)):
		case <-ctx.Done():
			return ctx.Err()
		}
		t.mu.Lock()
		after := t.runs
		t.mu.Unlock()
		if before == after {
			return nil
		}
	}
}

func (t *team) segments(seed, n int) (list []connector.SegmentIDs) {
	for i := range n {
		tokens := tokensOf(1000*seed+i, figureTokens)
		spec, _ := t.profile.MidSpec(len(tokens), 8)
		list = append(list, connector.SegmentIDs{Spec: spec, Tokens: tokens})
	}
	return list
}

// plan requests a plan at the combining node. The field Queued says that this node's own engine
// is busy for an hour, so that the engine gets no segment.
func (t *team) plan(ctx context.Context, list []connector.SegmentIDs, pieces bool) (connector.Parallel, error) {
	return t.models[0].PlanSegments(ctx, &connector.ParallelQuery{Segments: list, Pieces: pieces, Queued: time.Hour, Within: 5 * time.Minute})
}

// collect returns the time in which the combining node fetches one segment from each worker, all
// at the same time. The segments are already cached at the workers, so the plan only fetches
// them.
func (t *team) collect(ctx context.Context) (ms float64, err error) {
	var list []connector.SegmentIDs
	for i, m := range t.models[1:] {
		x := t.segments(500+i, 1)[0]
		if _, err := m.Put(ctx, &connector.PutQuery{Spec: x.Spec, Tokens: x.Tokens, Source: connector.Source{Parts: t.bytes(x.Spec)}}); err != nil {
			return 0, err
		}
		list = append(list, x)
	}
	r, err := t.run(ctx, list, false)
	return r.here, err
}

// request runs the paper's request.
func (t *team) request(ctx context.Context, seed int, pieces bool) (r run, err error) {
	return t.run(ctx, t.segments(seed, figureSegments), pieces)
}

func (t *team) run(ctx context.Context, list []connector.SegmentIDs, pieces bool) (r run, err error) {
	t.mu.Lock()
	t.runs = 0
	t.mu.Unlock()
	began := time.Now()
	p, err := t.plan(ctx, list, pieces)
	if err != nil {
		return r, err
	}
	if p.ID == 0 || len(p.Own) > 0 {
		return r, fmt.Errorf("alone %d, %d rows of its own", p.Alone, len(p.Own))
	}
	r.planned = p.Expected.Seconds() * 1e3
	for open := 1; open > 0; {
		progress, left, err := t.models[0].WatchPlan(ctx, p.ID, 5*time.Second)
		if err != nil {
			return r, err
		}
		for _, x := range progress {
			if x.What != wire.ProgressCommitted {
				t.mu.Lock()
				defer t.mu.Unlock()
				return r, errors.Join(fmt.Errorf("row %d: progress %d", x.Row, x.What), t.failed)
			}
		}
		open = left
	}
	r.here = time.Since(began).Seconds() * 1e3
	t.mu.Lock()
	r.computed, r.cuts = t.ended.Sub(began).Seconds()*1e3, t.runs-len(list)
	err = t.failed
	t.mu.Unlock()
	return r, errors.Join(err, t.models[0].EndPlan(ctx, p.ID))
}
