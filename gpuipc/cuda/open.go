package cuda

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/internal/bounded"
)

// device is one GPU.
type device struct {
	// Fixed after Open.
	api         *driver.API
	options     Options
	id          driver.Device
	info        Info
	context     driver.Context
	granularity int64
	kernels     *module
	lanes       *lanes
	words       *lanes         // lanes for the words of package order
	foreign     *bounded.Calls // calls on memory of other processes
	limits      limits
	attachPiece int64

	regions  atomic.Int64 // number of open regions
	attached attachments
	lost     atomic.Pointer[lostError] // set once, never reset
	gathered atomic.Int64
	unpinned atomic.Int64
	told     atomic.Bool // set when it was logged that host memory is not pinned
}

// Open loads the driver, retains the primary context of the selected device and compiles
// the kernels for it. Compiling takes seconds, unless the driver has the result in its
// cache. ErrUnavailable names the missing part. ErrInvalid means that o is invalid.
func Open(o Options) (gpuipc.Accelerator, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	api, err := driver.Load(o.Library)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	id, info, err := choose(api, o.Device)
	if err != nil {
		return nil, err
	}
	d := &device{api: api, options: o, id: id, info: info, limits: defaultLimits, attachPiece: attachPiece}
	d.lanes, d.words = newLanes(d, o.Streams), newLanes(d, wordLanes)
	d.foreign = bounded.New(bounded.Host{Run: d.onThread, Release: d.release, Log: o.Log}, o.CallTimeout)
	if err := d.start(); err != nil {
		return nil, fmt.Errorf("cuda: %s (%s): %w", info.Name, info.UUID, err)
	}
	return d, nil
}

// start creates everything that Close releases.
func (d *device) start() (err error) {
	if d.granularity, err = d.api.Granularity(d.id); err != nil {
		d.info.Descriptors = false
	}
	if !d.info.Descriptors {
		d.granularity = handleGranularity
	}
	if d.context, err = d.api.PrimaryContextRetain(d.id); err != nil {
		return unavailable(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err = d.api.ContextSetCurrent(d.context); err == nil {
		d.kernels, err = loadModule(d.api)
	}
	if err != nil {
		_ = d.api.PrimaryContextRelease(d.id) // the first error says more
		return unavailable(err)
	}
	return nil
}

// The method enter locks the calling goroutine to its thread and makes the device's context
// current there, until the method leave is called. It returns an error if the device is
// lost.
func (d *device) enter() error {
	if err := d.gone(); err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := d.api.ContextSetCurrent(d.context); err != nil {
		runtime.UnlockOSThread()
		return d.fail(err)
	}
	return nil
}

func (d *device) leave() { runtime.UnlockOSThread() }

// onThread runs f between enter and leave.
func (d *device) onThread(f func() error) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return f()
}

// release runs f, which releases memory, on a thread with the context. It does so even if
// the device is lost, so that the driver gets back whatever it accepts.
func (d *device) release(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.api.ContextSetCurrent(d.context); err != nil {
		_ = d.api.ContextSetCurrent(0) // f must not run in the context of another device either
	}
	f()
}

// Describe returns the GPU and the features in use.
func (d *device) Describe() gpuipc.Description {
	features := []string{
		fmt.Sprintf("sm_%d%d", d.info.Major, d.info.Minor),
		fmt.Sprintf("cuda %d.%d", d.info.Driver/1000, d.info.Driver%1000/10),
	}
	if d.info.Descriptors {
		features = append(features, "descriptors")
	}
	if d.info.WaitValues {
		features = append(features, "wait values")
	}
	return gpuipc.Description{Kind: "cuda", Name: d.info.Name, Features: features}
}

// UUID returns the UUID of the device.
func (d *device) UUID() gpuipc.UUID { return d.info.UUID }

// Counters returns what was counted since Open.
func (d *device) Counters() Counters {
	return Counters{
		StuckCalls: d.foreign.Stuck(), LateCalls: d.foreign.Late(), Lanes: d.lanes.made.Load() + d.words.made.Load(),
		Gathered: d.gathered.Load(), Unpinned: d.unpinned.Load(),
	}
}

// Import returns ErrUnavailable, because memory of an accelerator is imported as a Share.
func (d *device) Import(h gpuipc.Handle) (gpuipc.Region, error) {
	if h.File != nil {
		h.File.Close()
	}
	return nil, fmt.Errorf("cuda: import: memory of a GPU comes as a Share: %w", gpuipc.ErrUnavailable)
}

// Pin returns ErrUnavailable, because the memory has no host address.
func (d *device) Pin(r gpuipc.Ref, _ bool) ([][]byte, func(), error) {
	c := d.checker()
	defer c.letGo()
	if err := c.Reads("pin", r, 1, r.Len()); err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("cuda: pin: device memory has no host address: %w", gpuipc.ErrUnavailable)
}

// Close releases everything. It returns ErrInvalid while regions are open or host regions
// are attached. It returns ErrUnavailable while driver calls on memory of other processes
// have not returned. These calls still need the context, and Close may be called again
// later.
func (d *device) Close() error {
	if n, m := d.regions.Load(), d.attached.count(); n != 0 || m != 0 {
		return fmt.Errorf("cuda: close: %d regions are open, %d host regions attached: %w", n, m, gpuipc.ErrInvalid)
	}
	if err := d.foreign.Close(); err != nil {
		return err
	}
	if bulk, words := d.lanes.close(), d.words.close(); !bulk || !words {
		return fmt.Errorf("cuda: close: closed already: %w", gpuipc.ErrInvalid)
	}
	var err error
	d.release(func() {
		err = d.kernels.unload(d.api)
		// The thread must not keep a context that is about to be released.
		if e := d.api.ContextSetCurrent(0); err == nil {
			err = e
		}
	})
	if e := d.api.PrimaryContextRelease(d.id); err == nil {
		err = e
	}
	if err = d.fail(err); d.gone() != nil {
		return nil // the driver refuses to clean up a lost device, and no memory of ours is left
	}
	return err
}
