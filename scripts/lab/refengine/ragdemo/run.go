package ragdemo

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// Store keeps the demo's segments and prefix states: the daemon, or memory in tests.
type Store interface {
	refengine.Cache
	refengine.Prefixes
	// HeldBytes returns the bytes of the model's segments and checkpoints.
	HeldBytes() (segments, checkpoints int64, err error)
}

// Options configures a run. The zero value runs every request of the embedded sample.
type Options struct {
	Requests int // number of requests; 0 = all
	Seam     int // w; 0 = 8
	// Tolerance of the model's identity, see profile.Identity; 0 = segments are stored exactly.
	// It is ignored for a trained model, which has its own tolerance.
	Tolerance float64
	Sample    *Sample // nil = the embedded one
	// Trained, if set, is a trained model that answers its own questions. The sample and the
	// model passed to Run are then not used.
	Trained *Trained
	// Crash, if set, kills the store's process and returns after its restart. Run calls it once,
	// in the middle of the run, and serves the last requests again just before and just after
	// the call. The store must be Durable.
	Crash func(ctx context.Context) error
	// Progress, when set, is called before each step from the running goroutine.
	Progress func(Progress)
}

// Progress describes the next step.
type Progress struct {
	Done, Total int // steps
	Request     int // index
	Way         string
}

// The ways, by their names in reports.
const (
	WayFull    = "full recompute"
	WayPrefix  = "prefix caching"
	WaySpliced = "spliced"
	WayAdded   = "naive addition"
)

var ways = []string{WayFull, WayPrefix, WaySpliced, WayAdded}

// outcome is the result of one request in one way.
type outcome struct {
	ttft             time.Duration
	computed, reused int
	first, deepest   deviation // from full recompute
	agrees           bool      // next token
	answer           string    // of a trained model, decoded greedily
	right, same      bool      // the answer equals the expected one; it equals the one of full recompute
}

// Run measures all requests in all ways. It serves each request in every way before the next
// request, so that changes in the machine's speed affect all ways equally. When ctx ends, it
// stops before the next step.
func Run(ctx context.Context, m *refengine.Model[float32], store Store, o Options) (*Report, error) {
	load, err := o.workload(m)
	if err != nil {
		return nil, err
	}
	m = load.model
	if o.Requests <= 0 || o.Requests > load.requests {
		o.Requests = load.requests
	}
	if o.Seam == 0 {
		o.Seam = 8
	}
	r := &runner{m: m, store: store, opt: o, load: load, linear: m.Profile().LinearLayers()}
	if len(r.linear) == 0 {
		return nil, errors.New("ragdemo: the model has no linear layer")
	}
	began := time.Now()
	if err := r.warmUp(); err != nil {
		return nil, err
	}
	for i := range o.Requests {
		if err := r.request(ctx, i); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
		if served := i + 1; o.Crash != nil && served == (o.Requests+1)/2 {
			if err := r.crash(ctx, served); err != nil {
				return nil, err
			}
		}
	}
	return r.report(time.Since(began))
}

type runner struct {
	m      *refengine.Model[float32]
	store  Store
	opt    Options
	load   *workload
	linear []int
	cold   []bool // per request
	tokens []int  // per request: prompt length
	done   map[string][]outcome
	steps  int

	recent  []recall // the last requests, until the crash
	restart *Restart
}

// warmUp lets the allocator and the tables grow before anything is timed.
func (r *runner) warmUp() error {
	r.done = map[string][]outcome{}
	all, _ := r.load.prompt(0).whole()
	_, err := r.m.Prefill(r.m.NewState(), all)
	runtime.GC()
	return err
}

func (r *runner) step(ctx context.Context, i int, way string) error {
	if r.opt.Progress != nil {
		r.opt.Progress(Progress{r.steps, r.opt.Requests * len(ways), i, way})
	}
	r.steps++
	return ctx.Err()
}

// request serves one request in every way and compares with full recompute.
func (r *runner) request(ctx context.Context, i int) error {
	p := r.load.prompt(i)
	all, boundaries := p.whole()
	r.tokens = append(r.tokens, len(all))

	if err := r.step(ctx, i, WayFull); err != nil {
		return err
	}
	full := r.m.NewState()
	began := time.Now()
	logits, err := r.m.Prefill(full, all)
	if err != nil {
		return err
	}
	truth := reference{state: full, next: refengine.Greedy(logits)}
	o := outcome{ttft: time.Since(began), computed: len(all), agrees: true}
	if r.load.trained != nil {
		if truth.answer, err = r.load.answer(full.Clone(), logits); err != nil {
			return err
		}
	}
	r.add(WayFull, r.judge(i, o, truth.answer, truth))
	r.remember(i, truth)

	if err := r.step(ctx, i, WayPrefix); err != nil {
		return err
	}
	if err := r.prefix(i, all, boundaries, truth); err != nil {
		return err
	}
	req := r.ask(p)
	if err := r.step(ctx, i, WaySpliced); err != nil {
		return err
	}
	missed, err := r.serve(i, WaySpliced, r.store, req, truth)
	if err != nil {
		return err
	}
	r.cold = append(r.cold, missed > 0)
	if err := r.step(ctx, i, WayAdded); err != nil {
		return err
	}
	_, err = r.serve(i, WayAdded, refengine.Adding{Cache: r.store}, req, truth)
	return err
}

// ask returns a prompt as a request of segments.
func (r *runner) ask(p prompt) refengine.Request {
	return refengine.Request{First: p.first, Mid: p.passages, Query: p.query, Seam: r.opt.Seam}
}

func (r *runner) add(way string, o outcome) { r.done[way] = append(r.done[way], o) }

// reference is the result of full recompute.
type reference struct {
	state  *refengine.State[float32]
	next   uint32
	answer []uint32
}

func (r *runner) prefix(i int, all []uint32, boundaries []int, truth reference) error {
	began := time.Now()
	out, err := refengine.ServePrefix(r.m, r.store, all, boundaries)
	ttft := time.Since(began)
	if err != nil {
		return err
	}
	if out.Cache != nil {
		return fmt.Errorf("%s: %w", WayPrefix, out.Cache)
	}
	if t, ok := r.store.(teller); ok {
		if err := t.ServedPrefix(len(all), out.Reused, ttft); err != nil {
			return fmt.Errorf("%s: %w", WayPrefix, err)
		}
	}
	o := r.measure(outcome{ttft: ttft, computed: out.Computed, reused: out.Reused}, out.Logits, out.State, truth)
	if err := out.Keep(); err != nil {
		return fmt.Errorf("%s: %w", WayPrefix, err)
	}
	return r.finish(i, WayPrefix, o, out.Logits, out.State, truth)
}

// teller is a store that receives reports on how prompts were served.
type teller interface {
	ServedPrefix(tokens, reused int, first time.Duration) error
	ServedSplice(tokens int, r *refengine.Result, first time.Duration) error
}

func (r *runner) serve(i int, way string, c refengine.Cache, req refengine.Request, truth reference) (missed int, err error) {
	began := time.Now()
	out, err := refengine.Serve(r.m, c, req)
	ttft := time.Since(began)
	if err != nil {
		return 0, err
	}
	if out.Cache != nil {
		return 0, fmt.Errorf("%s: %w", way, out.Cache)
	}
	if t, ok := r.store.(teller); ok {
		if err := t.ServedSplice(len(req.Prompt()), out, ttft); err != nil {
			return 0, fmt.Errorf("%s: %w", way, err)
		}
	}
	o := outcome{ttft: ttft, computed: out.Captured + out.Recomputed, reused: out.Reused}
	o = r.measure(o, out.Logits, out.State, truth)
	return out.Missed, r.finish(i, way, o, out.Logits, out.State, truth)
}

// finish lets the model generate the answer from a way's state, and records it.
func (r *runner) finish(i int, way string, o outcome, logits []float32, st *refengine.State[float32], truth reference) error {
	answer, err := r.load.answer(st, logits)
	if err != nil {
		return err
	}
	r.add(way, r.judge(i, o, answer, truth))
	return nil
}

// judge compares an answer with the expected one, and with that of full recompute.
func (r *runner) judge(i int, o outcome, answer []uint32, truth reference) outcome {
	if t := r.load.trained; t != nil {
		o.answer = t.Text(answer)
		o.right, o.same = slices.Equal(answer, t.Questions[i].Answer), slices.Equal(answer, truth.answer)
	}
	return o
}

// measure compares a result with full recompute.
func (r *runner) measure(o outcome, logits []float32, st *refengine.State[float32], truth reference) outcome {
	at := func(layer int) deviation { return deviate(st.Layers[layer].S, truth.state.Layers[layer].S) }
	o.first, o.deepest = at(r.linear[0]), at(r.linear[len(r.linear)-1])
	o.agrees = refengine.Greedy(logits) == truth.next
	return o
}

// describe returns the counts of the model's layers for display.
func describe(p *profile.Profile) string {
	return fmt.Sprintf("%d layers (%d linear, %d full attention)", p.Layers(), len(p.LinearLayers()), len(p.AttentionLayers()))
}
