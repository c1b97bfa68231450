package replay

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/replay/trace"
)

// Unlimited is a capacity that is never reached.
const Unlimited int64 = math.MaxInt64

// ErrPolicy means that the trace cannot be replayed with a policy.
var ErrPolicy = errors.New("no such policy for this trace")

// Options configures a replay.
type Options struct {
	Path        string
	Trace       trace.Options
	Policies    []string // empty = the default policies for the kind of trace
	Capacities  []int64  // bytes; empty = Unlimited; not used for overlap depths
	Checkpoints []int    // for overlap depths: maximum states per prompt; empty = 1, 2, 4, … 64
	Model       Model    // the zero value = DefaultModel of the trace's kind
	System      int      // for lists of segments: tokens of a leading segment that every prompt has
	Seam        int      // for lists of segments: tokens recomputed on each side of a segment
	Bound       bool     // also compute the upper bound for every policy
	Title       string   // of the chart; empty = the trace's file
	Progress    func(done float64)
}

// Counts counts the work of any simulation.
type Counts struct {
	Evictions int64
	Admitted  int64
	Refused   int64
	UsedBytes int64
	PeakBytes int64
	States    int64 // for overlap depths: states saved
	Steps     int64 // edges followed, segments or checkpoints examined
	Alpha     *float64
}

// simulation is one policy at one capacity.
type simulation interface {
	// serve returns the tokens of the request and how many of them need no prefill.
	serve(r *trace.Request, now time.Time) (input, hit int)
	totals() Counts
}

// batchRequests is the number of requests that are decoded together and then passed to each
// simulation. It is large enough to justify starting workers, and small enough for memory.
const batchRequests = 64

// Run replays a trace. It stops between batches when ctx ends.
func Run(ctx context.Context, o Options) (*Report, error) {
	began := time.Now()
	in, err := trace.Open(o.Path, o.Trace)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := o.complete(in.Info()); err != nil {
		return nil, err
	}
	runs, err := o.plan(in.Info())
	if err != nil {
		return nil, err
	}
	limit := o.newBounds(in.Info())
	if err := feed(ctx, in, runs, limit, o.Progress); err != nil {
		return nil, err
	}
	report := o.report(in, runs)
	limit.fill(report.Runs)
	report.Seconds = time.Since(began).Seconds()
	return report, nil
}

func feed(ctx context.Context, in *trace.Reader, runs []*run, limit *bounds, progress func(float64)) error {
	batch := make([]trace.Request, batchRequests)
	served := 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := 0
		var err error
		for n < len(batch) && err == nil {
			if err = in.Next(&batch[n]); err == nil {
				n++
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		limit.add(batch[:n])
		each(runs, func(r *run) { r.serve(batch[:n], served) })
		served += n
		if progress != nil {
			if done, total := in.Progress(); total > 0 {
				progress(float64(done) / float64(total))
			}
		}
		if err != nil {
			return nil
		}
	}
}

// each calls the function do for every run, on all available cores. A run is used by one
// goroutine at a time.
func each(runs []*run, do func(*run)) {
	workers := min(runtime.GOMAXPROCS(0), len(runs))
	if workers < 2 {
		for _, r := range runs {
			do(r)
		}
		return
	}
	next := make(chan *run)
	var busy sync.WaitGroup
	for range workers {
		busy.Go(func() {
			for r := range next {
				do(r)
			}
		})
	}
	for _, r := range runs {
		next <- r
	}
	close(next)
	busy.Wait()
}

// run is a simulation with its measurements.
type run struct {
	policy      string
	capacity    int64
	checkpoints int
	sim         simulation
	model       *Model
	requests    int
	input, hit  int64
	symbols     int64     // of prompts and answers
	ttft, cold  []float32 // modelled milliseconds of each request, with the cache and without
	busy        time.Duration
}

// serve plays a batch of requests. first is the number of requests before the batch.
func (r *run) serve(batch []trace.Request, first int) {
	watch := startWatch()
	for i := range batch {
		q := &batch[i]
		r.symbols += int64(len(q.Input) + len(q.Output))
		input, hit := r.sim.serve(q, clock(q, first+i))
		r.requests++
		r.input += int64(input)
		r.hit += int64(hit)
		whole := max(q.InputTokens, input)
		r.ttft = append(r.ttft, float32(r.model.ttft(whole, hit)))
		r.cold = append(r.cold, float32(r.model.ttft(whole, 0)))
	}
	r.busy += watch.stop()
}

// clock returns the time of request number i. In traces without times, requests are one second
// apart.
func clock(q *trace.Request, i int) time.Time {
	if q.Time > 0 {
		return time.Unix(0, 0).Add(q.Time)
	}
	return time.Unix(int64(i), 0)
}
