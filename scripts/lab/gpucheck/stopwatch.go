package gpucheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// stopwatch launches kernels through the driver, without the accelerator's interface. It uses
// one stream and one locked thread, and times kernels with events of the device.
type stopwatch struct {
	api        *driver.API
	device     driver.Device
	context    driver.Context
	module     driver.Module
	functions  map[string]function
	stream     driver.Stream
	start, end driver.Event
	memory     []driver.DevicePtr
	pool       *pool         // memory for copies; nil without
	least      time.Duration // minimum time of all runs of one round together
}

// function is a kernel and the dynamic shared memory requested for it.
type function struct {
	handle driver.Function
	shared uint32
}

func (c *check) stopwatch() (*stopwatch, error) {
	w, err := c.bareStopwatch()
	if err != nil {
		return nil, err
	}
	if err := w.loadKernels(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// bareStopwatch returns a stopwatch without kernels.
func (c *check) bareStopwatch() (*stopwatch, error) {
	api, err := driver.Load(c.Library)
	if err != nil {
		return nil, err
	}
	w := &stopwatch{api: api, functions: map[string]function{}, least: c.Sizes.Timing}
	if w.device, err = ordinal(api, c.Device); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	if err := w.open(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *stopwatch) open() error {
	var err error
	if w.context, err = w.api.PrimaryContextRetain(w.device); err != nil {
		return err
	}
	if err := w.current(); err != nil {
		return err
	}
	if w.stream, err = w.api.StreamCreate(); err != nil {
		return err
	}
	if w.start, err = w.api.EventCreate(driver.EventBlocking); err != nil {
		return err
	}
	w.end, err = w.api.EventCreate(driver.EventBlocking)
	return err
}

// loadKernels compiles the kernels unless the driver has cached them.
func (w *stopwatch) loadKernels() (err error) {
	w.module, err = w.api.ModuleLoad(kernels.PTX())
	return err
}

// current sets the context of this thread. That is necessary again after the accelerator was
// used on the thread, because the accelerator leaves no context set.
func (w *stopwatch) current() error { return w.api.ContextSetCurrent(w.context) }

// close frees everything and unlocks the thread.
func (w *stopwatch) close() error {
	defer runtime.UnlockOSThread()
	if w.context == 0 {
		return nil
	}
	errs := []error{w.current(), w.free(), w.closePool()}
	for _, e := range []driver.Event{w.start, w.end} {
		if e != 0 {
			errs = append(errs, w.api.EventDestroy(e))
		}
	}
	if w.stream != 0 {
		errs = append(errs, w.api.StreamDestroy(w.stream))
	}
	if w.module != 0 {
		errs = append(errs, w.api.ModuleUnload(w.module))
	}
	return errors.Join(append(errs, w.api.ContextSetCurrent(0), w.api.PrimaryContextRelease(w.device))...)
}

// alloc returns memory that lives until free.
func (w *stopwatch) alloc(n int64) (driver.DevicePtr, error) {
	p, err := w.api.MemAlloc(n)
	if err == nil {
		w.memory = append(w.memory, p)
	}
	return p, err
}

// free waits for the stream, on which a failed check may have left work, and frees all
// memory.
func (w *stopwatch) free() error {
	var errs []error
	if w.stream != 0 && len(w.memory) > 0 {
		errs = append(errs, w.api.StreamSynchronize(w.stream))
	}
	for _, p := range w.memory {
		errs = append(errs, w.api.MemFree(p))
	}
	w.memory = nil
	return errors.Join(errs...)
}

// prepare copies the tables of launches to device memory, so that only kernels are timed.
func (w *stopwatch) prepare(launches []kernels.Launch) error {
	for i := range launches {
		l := &launches[i]
		if len(l.Tables) > 0 {
			p, err := w.alloc(int64(len(l.Tables)))
			if err != nil {
				return err
			}
			if err := w.upload(p, l.Tables); err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(l.Args, uint64(p))
		}
		if err := w.allow(l); err != nil {
			return err
		}
	}
	return nil
}

// allow finds the kernel of a launch and permits the shared memory that the launch requests. The
// same kernel may need more for other sizes.
func (w *stopwatch) allow(l *kernels.Launch) error {
	f, ok := w.functions[l.Name]
	if !ok {
		var err error
		if f.handle, err = w.api.ModuleFunction(w.module, l.Name); err != nil {
			return err
		}
	}
	if l.Shared > 48<<10 && l.Shared > f.shared {
		if err := w.api.FunctionMaxDynamicShared(f.handle, int(l.Shared)); err != nil {
			return fmt.Errorf("%s with %d bytes of shared memory: %w", l.Name, l.Shared, err)
		}
		f.shared = l.Shared
	}
	w.functions[l.Name] = f
	return nil
}

func (w *stopwatch) launch(launches []kernels.Launch) error {
	for i := range launches {
		l := &launches[i]
		if err := w.api.Launch(w.functions[l.Name].handle, l.Grid, l.Block, l.Shared, w.stream, l.Args); err != nil {
			return err
		}
	}
	return nil
}

// timed is work to be timed, as variants on separate memory. The variants run in turn, so that
// none finds its own data of the previous run in the L2 cache.
type timed struct {
	variants []func() error
	next     int
}

func one(f func() error) *timed { return &timed{variants: []func() error{f}} }

func (t *timed) run() error {
	t.next++
	return t.variants[(t.next-1)%len(t.variants)]()
}

// seconds returns the time of one run of x, as the mean of several consecutive runs. A plain
// copy precedes them on the stream. The host enqueues all runs while the copy is running, so
// that the result is the device's time and not the host's.
func (w *stopwatch) seconds(x *timed, runs int) (float64, error) {
	if err := w.plug(); err != nil {
		return 0, err
	}
	if err := w.api.EventRecord(w.start, w.stream); err != nil {
		return 0, err
	}
	for range runs {
		if err := x.run(); err != nil {
			return 0, err
		}
	}
	if err := w.api.EventRecord(w.end, w.stream); err != nil {
		return 0, err
	}
	if err := w.api.EventSynchronize(w.end); err != nil {
		return 0, err
	}
	ms, err := w.api.EventElapsed(w.start, w.end)
	return float64(ms) / 1e3 / float64(runs), err
}

// mostRuns bounds the runs enqueued at once; streams accept about a thousand.
const mostRuns = 100

// calibrationRuns is the number of runs that are timed to estimate the duration of a run. A
// single run would include the time to write back data of the preceding copy from the L2 cache.
const calibrationRuns = 8

// repetitions returns the number of runs that take at least the minimum time of a round. It
// first runs every variant once, because drivers load a kernel at its first launch.
func (w *stopwatch) repetitions(x *timed) (int, error) {
	for range x.variants {
		if err := x.run(); err != nil {
			return 0, err
		}
	}
	if err := w.api.StreamSynchronize(w.stream); err != nil || w.least <= 0 {
		return 1, err
	}
	t, err := w.seconds(x, calibrationRuns)
	if err != nil {
		return 0, err
	}
	return max(1, min(mostRuns, int(math.Ceil(w.least.Seconds()/t)))), nil
}

// medians times each element of the list all once in every round, and returns its median time in
// seconds. It repeats short work within a round, so that the resolution of events, half a
// microsecond, does not matter.
func (w *stopwatch) medians(rounds int, all ...*timed) ([]float64, error) {
	times, runs := make([][]float64, len(all)), make([]int, len(all))
	for i, x := range all {
		var err error
		if runs[i], err = w.repetitions(x); err != nil {
			return nil, err
		}
	}
	for range rounds {
		for i, x := range all {
			t, err := w.seconds(x, runs[i])
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], t)
		}
	}
	out := make([]float64, len(all))
	for i := range times {
		out[i] = median(times[i])
	}
	return out, nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
