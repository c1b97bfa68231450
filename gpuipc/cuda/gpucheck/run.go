package gpucheck

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
)

// Options says what to check.
type Options struct {
	Library string // path of the driver library; "" = libcuda.so.1
	Device  string // UUID; "" = the first
	Commit  string
	Seed    uint64 // of the inputs; 0 = from the clock
	Sizes   Sizes
	// Self starts this program once more, so that it calls Child; empty skips what needs a
	// second process.
	Self []string
	// Python is the interpreter for the checks with torch; "" skips them.
	Python string
	// PythonPath holds spliced_connector, Scripts what runs on it here.
	PythonPath string
	Scripts    string
	// Also are checks of the caller, after the others.
	Also []Part
	// Progress is told what comes next.
	Progress func(string)
}

// Part is a check of a caller: it adds rows, an error becomes one.
type Part struct {
	Name string
	Run  func(ctx context.Context, r *Report) error
}

// Sizes scale the inputs.
type Sizes struct {
	Layers   int           // linear layers of the timed compose
	Heads    int           // value heads
	Dim      int           // key and value dimensions
	Segments int           // most segments of one compose
	Rows     int           // tokens of a segment for rotation
	Copy     int64         // bytes of plain copies
	Rounds   int           // interleaved rounds of which the median counts
	Rallies  int           // exchanges of the order check
	Requests int           // of the overhead check
	Window   time.Duration // of each measurement beside a neighbour
	Warm     time.Duration // of copies before anything is timed, for clocks to rise
	Timing   time.Duration // least time of one round of a timed kernel, which repeats it
}

// Full are sizes of a real GPU: the linear layers of a 35B-A3B model, 1,000
// tokens a segment, working sets of several L2 caches.
func Full() Sizes {
	return Sizes{Layers: 30, Heads: 32, Dim: 128, Segments: 16, Rows: 1024, Copy: 1 << 30, Rounds: 15, Rallies: 2000, Requests: 2000, Window: 2 * time.Second,
		Warm: time.Second, Timing: 2 * time.Millisecond}
}

// Small are sizes that a CPU emulates in seconds.
func Small() Sizes {
	return Sizes{Layers: 2, Heads: 2, Dim: 64, Segments: 3, Rows: 16, Copy: 1 << 20, Rounds: 3, Rallies: 20, Requests: 20, Window: 50 * time.Millisecond}
}

// check is one run's state.
type check struct {
	Options
	ctx    context.Context
	rng    *rand.Rand
	host   gpuipc.Device
	gpu    gpuipc.Accelerator
	report *Report
}

// Run makes all checks. An error means that there was nothing to check on: no
// driver, no device.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	info, err := find(o.Library, o.Device)
	if err != nil {
		return nil, err
	}
	o.Device = info.UUID.String()
	sizes := "of the caller"
	switch o.Sizes {
	case Full():
		sizes = "full"
	case Small():
		sizes = "small: its times mean nothing"
	}
	c := &check{Options: o, ctx: ctx, rng: rand.New(rand.NewPCG(o.Seed, 1)), report: &Report{
		Device: info.Name, UUID: o.Device, Driver: fmt.Sprintf("%d.%d", info.Driver/1000, info.Driver%1000/10),
		Date: time.Now().UTC().Format(time.RFC3339), Commit: o.Commit, Seed: o.Seed, Sizes: sizes,
	}}
	if c.host, err = gpuipc.NewHost(gpuipc.HostOptions{}); err != nil {
		return nil, err
	}
	if c.gpu, err = cuda.Open(cuda.Options{Library: o.Library, Device: o.Device, AttachWait: time.Minute}); err != nil {
		return nil, err
	}
	c.all()
	c.report.Holds("device closes with nothing left open", c.gpu.Close())
	return c.report, c.host.Close()
}

func find(library, uuid string) (*cuda.Info, error) {
	devices, err := cuda.Devices(library)
	if err != nil {
		return nil, err
	}
	for i := range devices {
		if uuid == "" || devices[i].UUID.String() == uuid {
			return &devices[i], nil
		}
	}
	return nil, fmt.Errorf("no device %s among %d: %w", uuid, len(devices), gpuipc.ErrUnavailable)
}

func (c *check) all() {
	own := func(name string, run func() error) Part {
		return Part{name, func(context.Context, *Report) error { return run() }}
	}
	parts := []Part{
		own("kernels against the CPU", c.agree),
		own("speed of kernels", c.speed),
		own("copies between host and device", c.transfers),
		own("fixed cost of a request", c.overhead),
		own("memory in a second process", c.shared),
		own("order between two processes", c.ordered),
		own("streams that wait", c.rescued),
		own("a busy neighbour", c.neighbour),
		own("torch and other oracles", c.python),
	}
	for _, part := range append(parts, c.Also...) {
		c.Progress(part.Name)
		if err := part.Run(c.ctx, c.report); err != nil {
			c.report.Holds(part.Name, err)
		}
		if err := c.ctx.Err(); err != nil {
			c.report.Holds("all checks within the time", err)
			return
		}
	}
}
