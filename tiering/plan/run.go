package plan

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// run is a plan in progress. It keeps its leased objects in place until end.
type run struct {
	jobs
	runner   *Runner
	scope    Scope
	geometry *Geometry
	held     *Held
	spans    []heldSpan
	chain    []share // the checkpoint that the plan begins from and its ancestors, from the root
	began    time.Time
	timing   Timing

	rotations rotations
}

// heldSpan is a span and its leased segment.
type heldSpan struct {
	Span
	segment share // the zero value if the span is recomputed
	origin  int   // prompt position of the whole segment's token 0
}

func (sp *heldSpan) isSegment() bool { return sp.segment.parts != nil }

// begin starts a plan and keeps its leased objects in place. The plan runs on the device that
// has these objects. If the plan has no leases, it runs on the device of the region answer. The
// caller must call run.end.
func (s *Session) begin(sc Scope, g *Geometry, from From, pl *Plan, answer gpuipc.Region) (*run, error) {
	if err := pl.check(); err != nil {
		return nil, err
	}
	held, err := s.store.Hold(sc, pl.leases(from))
	if err != nil {
		return nil, err
	}
	r := &run{runner: s.runner, scope: sc, geometry: g, held: held, rotations: rotations{geometry: g}}
	if r.on = held.On; r.on == nil {
		r.on = s.runner.deviceOf(answer)
	}
	if err := r.resolve(from, pl); err != nil {
		held.Release()
		return nil, err
	}
	r.began = s.runner.Now()
	return r, nil
}

// end releases the leased objects, and counts the operation if it succeeded.
func (r *run) end(counter *atomic.Uint64, err error) {
	r.held.Release()
	if err != nil {
		return
	}
	counter.Add(1)
	if r.runner.Took != nil && r.on == r.runner.Memory && r.timing.Compose+r.timing.Rotate > 0 {
		r.runner.Took(r.scope, r.timing)
	}
}

// resolve checks that the leased objects fit the plan.
func (r *run) resolve(from From, pl *Plan) error {
	sources := r.held.Sources
	if from.Kind == FromCheckpoint {
		if err := r.resolveBase(&sources[0], pl.Begin); err != nil {
			return err
		}
		sources = sources[1:]
	}
	r.spans = make([]heldSpan, len(pl.Spans))
	whole := 0 // end of the last whole segment
	for i := range pl.Spans {
		sp := &r.spans[i]
		sp.Span = pl.Spans[i]
		if sp.Kind == SpanRecompute {
			continue
		}
		var err error
		if whole, err = sp.resolve(r.geometry, &sources[0], whole); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		sources = sources[1:]
		r.timing.Segments++
		r.timing.Rows += sp.Count
	}
	return nil
}

// resolveBase sets chain to the checkpoint that a plan begins from and its ancestors.
func (r *run) resolveBase(src *Source, begin int) error {
	if err := src.checkBase(begin); err != nil {
		return err
	}
	r.chain = make([]share, 0, len(src.Ancestors)+1)
	for i := range src.Ancestors {
		r.chain = append(r.chain, r.geometry.share(&src.Ancestors[i]))
	}
	r.chain = append(r.chain, r.geometry.share(src))
	return nil
}

// checkBase returns an error unless a source is a checkpoint whose number of tokens is the
// parameter begin. A checkpoint of kind Rows is also an error, since its states must be rebuilt
// first.
func (src *Source) checkBase(begin int) error {
	if src.Kind == 0 || src.Kind == tier.Rows || src.End != begin {
		return fmt.Errorf("%v as the first %d tokens: %w", src.Name, begin, tier.ErrInvalid)
	}
	return nil
}

// resolve checks that a segment fits its span and returns the end of the whole segment, tail
// included. The parameter whole is the end of the previous whole segment, before which the whole
// segment must not begin.
func (sp *heldSpan) resolve(g *Geometry, src *Source, whole int) (int, error) {
	switch {
	case src.Kind != 0:
		return 0, fmt.Errorf("lease %d is of a checkpoint: %w", sp.Lease, tier.ErrInvalid)
	case sp.Count != src.End-src.Begin:
		return 0, fmt.Errorf("%d tokens for %v, whose interior has %d: %w", sp.Count, src.Name, src.End-src.Begin, tier.ErrInvalid)
	case src.Spec.Role == profile.RoleFirst && sp.Start != 0:
		return 0, fmt.Errorf("%v was captured to stand first, not at %d: %w", src.Name, sp.Start, tier.ErrInvalid)
	}
	sp.segment = g.share(src)
	sp.origin = sp.Start - src.Begin
	if sp.origin < whole {
		return 0, fmt.Errorf("%v begins at %d with its head of %d tokens, before %d: %w", src.Name, sp.origin, src.Begin, whole, tier.ErrInvalid)
	}
	return sp.origin + src.Spec.Tokens, nil
}
