package gpuipc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// task is one operation, cut into items that any worker can take. The caller's goroutine
// works too, so an operation makes progress without other workers.
type task struct {
	host    *host
	ctx     context.Context
	op      Op
	pause   func() // nil = none
	items   int
	work    func(w *worker, item int) error
	next    atomic.Int64 // number of items taken
	started atomic.Int64 // number of chunks started
	failed  atomic.Bool
	once    sync.Once
	err     error // the first failure; written once, read after all workers have stopped
}

// worker is one goroutine's part in a task.
type worker struct {
	*task
	*scratch
	callers bool // runs on the caller's goroutine
}

type pauseKey struct{}

// WithPause returns a context for operations of a host device. Between two of its pieces,
// such an operation calls the function pause on the goroutine of its caller. This function
// may block; other goroutines of the operation continue meanwhile.
func WithPause(ctx context.Context, pause func()) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// Pause calls the pause function of ctx, if it has one, as a device does between chunks.
// Other operations that wait for their turn can then run.
func Pause(ctx context.Context) {
	if pause, ok := ctx.Value(pauseKey{}).(func()); ok {
		pause()
	}
}

// run executes n items. Whatever happens, it returns only when no goroutine works on them
// any more. If wide is set, free workers of the device help.
func (h *host) run(ctx context.Context, op Op, n int, wide bool, work func(w *worker, item int) error) error {
	t := &task{host: h, ctx: ctx, op: op, items: n, work: work}
	t.pause, _ = ctx.Value(pauseKey{}).(func())
	if err := ctx.Err(); err != nil {
		return err
	}
	var group sync.WaitGroup
	for i := 1; wide && i < n && h.borrow(); i++ {
		group.Go(func() {
			defer h.giveBack()
			t.loop(false)
		})
	}
	t.loop(true)
	group.Wait()
	return h.holes.explain(t.err)
}

// borrow takes the right to start one more goroutine, if one is free.
func (h *host) borrow() bool {
	select {
	case h.extra <- struct{}{}:
		return true
	default:
		return false
	}
}

func (h *host) giveBack() { <-h.extra }

func (t *task) loop(callers bool) {
	s := t.host.scratch.Get().(*scratch)
	defer t.host.scratch.Put(s)
	w := &worker{task: t, scratch: s, callers: callers}
	err := guarded(func() error {
		for {
			item := int(t.next.Add(1)) - 1
			if item >= t.items {
				return nil
			}
			if err := w.chunk(); err != nil {
				return err
			}
			if err := t.work(w, item); err != nil {
				return err
			}
		}
	})
	if err != nil {
		t.once.Do(func() { t.err = err })
		t.failed.Store(true)
	}
}

// The method chunk is called before each piece of a task. A piece takes at most a few
// milliseconds. chunk returns an error if the task should stop. The first piece of a task
// always runs.
func (w *worker) chunk() error {
	n := w.started.Add(1) - 1
	if n == 0 {
		return nil
	}
	if w.callers && w.pause != nil {
		w.pause()
	}
	if between := w.host.between; between != nil {
		between(w.op, int(n))
	}
	if w.failed.Load() {
		return errStopped
	}
	return w.ctx.Err()
}

// errStopped ends the other workers after one has failed. No task returns it, since the
// first failure is recorded before.
var errStopped = errors.New("gpuipc: stopped")
