package ragdemo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// ErrChanged means that answers after the crash differ from those before it, or that the
// store lost data.
var ErrChanged = errors.New("ragdemo: a crash of the store changed what it serves")

// Durable is a Store that may be killed and restarted during a run.
type Durable interface {
	Store
	// Holdings looks up every segment and every checkpoint published so far, and counts the
	// hits. A segment that had to be published twice does not count, because it was lost.
	Holdings() (Holdings, error)
	// Hits counts the segments found since the run began, by tier.
	Hits() Hits
}

// Holdings counts the published objects that a store still has.
type Holdings struct {
	Segments        int   `json:"segments"`
	SegmentBytes    int64 `json:"segment_bytes"`
	Checkpoints     int   `json:"checkpoints"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
}

// Hits counts segments by the tier that a match reported.
type Hits struct {
	Memory int `json:"memory"`
	Disk   int `json:"disk"`
}

func (h Hits) minus(o Hits) Hits { return Hits{h.Memory - o.Memory, h.Disk - o.Disk} }

// Restart describes what the store had, and whether answers stayed the same, after its process
// was killed during the run.
type Restart struct {
	AfterRequest int      `json:"after_request"`
	Published    Holdings `json:"held_before"`
	Back         Holdings `json:"back_after"`
	BackMs       float64  `json:"back_ms"` // time from the kill until the next lookup succeeds
	Replayed     int      `json:"requests_replayed"`
	Same         int      `json:"answers_same"` // answers that are bit for bit equal, in both ways with reuse
	Before       Hits     `json:"hits_before"`
	Replay       Hits     `json:"hits_of_replay"` // after the kill
	After        Hits     `json:"hits_after"`     // from the kill to the end of the run, including the replay
}

// Failed returns why a run with a crash failed, or nil.
func (r *Restart) Failed() error {
	switch {
	case r == nil:
		return nil
	case r.Published.Segments == 0:
		return fmt.Errorf("%w: no segment was held before it, so nothing was shown", ErrChanged)
	case r.Back != r.Published:
		return fmt.Errorf("%w: %d of %d segments and %d of %d checkpoints came back", ErrChanged,
			r.Back.Segments, r.Published.Segments, r.Back.Checkpoints, r.Published.Checkpoints)
	case r.Same != r.Replayed:
		return fmt.Errorf("%w: %d of %d requests have the same answer", ErrChanged, r.Same, r.Replayed)
	}
	return nil
}

// replayed is the number of most recent requests that are served again just before and just
// after the crash.
const replayed = 3

// recall is a served request with the result of full recompute.
type recall struct {
	request int
	truth   reference
}

// remember keeps the last requests for a replay.
func (r *runner) remember(i int, truth reference) {
	if r.opt.Crash == nil || r.restart != nil {
		return
	}
	r.recent = append(r.recent, recall{i, truth})
	r.recent = r.recent[max(0, len(r.recent)-replayed):]
}

// crash kills and restarts the store, and serves the last requests before and after.
func (r *runner) crash(ctx context.Context, after int) error {
	store, ok := r.store.(Durable)
	if !ok {
		return errors.New("ragdemo: the store cannot tell what it holds after a crash")
	}
	before, err := r.replay(ctx)
	if err != nil {
		return fmt.Errorf("before the crash: %w", err)
	}
	out := &Restart{AfterRequest: after, Replayed: len(before), Before: store.Hits()}
	if out.Published, err = store.Holdings(); err != nil {
		return err
	}
	began := time.Now()
	if err := r.opt.Crash(ctx); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	out.BackMs = float64(time.Since(began)) / float64(time.Millisecond)
	// The replay comes before Holdings, because Holdings looks up all objects, and the daemon would
	// read these ahead.
	again, err := r.replay(ctx)
	if err != nil {
		return fmt.Errorf("after the crash: %w", err)
	}
	out.Replay = store.Hits().minus(out.Before)
	if out.Back, err = store.Holdings(); err != nil {
		return fmt.Errorf("after the crash: %w", err)
	}
	for i := range before {
		if before[i].same(again[i]) {
			out.Same++
		}
	}
	r.recent, r.restart = nil, out
	return nil
}

// answer is the result of one request in the ways with reuse.
type answer struct{ spliced, prefix given }

// given is one way's result, with its distance from full recompute.
type given struct {
	logits  []float32
	state   *refengine.State[float32]
	reused  int
	outcome outcome
}

// replay serves the last requests again, without adding them to the tables.
func (r *runner) replay(ctx context.Context) ([]answer, error) {
	var out []answer
	for _, c := range r.recent {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p := r.load.prompt(c.request)
		all, boundaries := p.whole()
		prefix, err := refengine.ServePrefix(r.m, r.store, all, boundaries)
		if err == nil {
			err = prefix.Cache
		}
		if err != nil {
			return nil, fmt.Errorf("request %d, %s: %w", c.request, WayPrefix, err)
		}
		spliced, err := refengine.Serve(r.m, r.store, r.ask(p))
		if err == nil {
			err = spliced.Cache
		}
		if err != nil {
			return nil, fmt.Errorf("request %d, %s: %w", c.request, WaySpliced, err)
		}
		out = append(out, answer{
			spliced: r.given(spliced.Logits, spliced.State, spliced.Reused, c.truth),
			prefix:  r.given(prefix.Logits, prefix.State, prefix.Reused, c.truth),
		})
	}
	return out, nil
}

func (r *runner) given(logits []float32, st *refengine.State[float32], reused int, truth reference) given {
	return given{logits, st, reused, r.measure(outcome{reused: reused}, logits, st, truth)}
}

// same reports whether the answers are equal bit for bit and reused the same number of tokens.
// If more was recomputed, the answer is right, but the crash has lost data.
func (a answer) same(b answer) bool { return a.spliced.same(b.spliced) && a.prefix.same(b.prefix) }

func (g given) same(o given) bool {
	return g.reused == o.reused && g.outcome == o.outcome && sameBits(g.logits, o.logits) &&
		slices.EqualFunc(g.state.Layers, o.state.Layers, func(x, y refengine.LayerState[float32]) bool {
			return sameBits(x.S, y.S) && sameBits(x.Conv, y.Conv) && sameBits(x.K, y.K) && sameBits(x.V, y.V)
		})
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}
