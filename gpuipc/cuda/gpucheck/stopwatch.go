package gpucheck

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// stopwatch launches kernels below the accelerator, on one stream, and times
// them by events of the device. It lives on one locked thread.
type stopwatch struct {
	api        *driver.API
	device     driver.Device
	module     driver.Module
	functions  map[string]driver.Function
	stream     driver.Stream
	start, end driver.Event
	memory     []driver.DevicePtr
}

func (c *check) stopwatch() (*stopwatch, error) {
	api, err := driver.Load(c.Library)
	if err != nil {
		return nil, err
	}
	w := &stopwatch{api: api, functions: map[string]driver.Function{}}
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
	context, err := w.api.PrimaryContextRetain(w.device)
	if err != nil {
		return err
	}
	if err := w.api.ContextSetCurrent(context); err != nil {
		return err
	}
	if w.module, err = w.api.ModuleLoad(kernels.PTX()); err != nil {
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

// close gives everything back and unlocks the thread.
func (w *stopwatch) close() error {
	defer runtime.UnlockOSThread()
	errs := []error{w.free()}
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

// alloc is memory until free.
func (w *stopwatch) alloc(n int64) (driver.DevicePtr, error) {
	p, err := w.api.MemAlloc(n)
	if err == nil {
		w.memory = append(w.memory, p)
	}
	return p, err
}

func (w *stopwatch) free() error {
	var errs []error
	for _, p := range w.memory {
		errs = append(errs, w.api.MemFree(p))
	}
	w.memory = nil
	return errors.Join(errs...)
}

// prepare puts the tables of launches into device memory, so that what is timed
// is kernels alone.
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
		if _, ok := w.functions[l.Name]; ok {
			continue
		}
		f, err := w.api.ModuleFunction(w.module, l.Name)
		if err != nil {
			return err
		}
		if l.Shared > 48<<10 {
			if err := w.api.FunctionMaxDynamicShared(f, int(l.Shared)); err != nil {
				return err
			}
		}
		w.functions[l.Name] = f
	}
	return nil
}

func (w *stopwatch) launch(launches []kernels.Launch) error {
	for i := range launches {
		l := &launches[i]
		if err := w.api.Launch(w.functions[l.Name], l.Grid, l.Block, l.Shared, w.stream, l.Args); err != nil {
			return err
		}
	}
	return nil
}

// seconds times what f puts on the stream.
func (w *stopwatch) seconds(f func() error) (float64, error) {
	if err := w.api.EventRecord(w.start, w.stream); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := w.api.EventRecord(w.end, w.stream); err != nil {
		return 0, err
	}
	if err := w.api.EventSynchronize(w.end); err != nil {
		return 0, err
	}
	ms, err := w.api.EventElapsed(w.start, w.end)
	return float64(ms) / 1e3, err
}

// medians runs all of them in turn, rounds times after one round to warm up, and
// gives the median seconds of each.
func (w *stopwatch) medians(rounds int, all ...func() error) ([]float64, error) {
	times := make([][]float64, len(all))
	for round := range rounds + 1 {
		for i, f := range all {
			t, err := w.seconds(f)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				times[i] = append(times[i], t)
			}
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
