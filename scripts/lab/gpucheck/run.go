package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
)

// Options selects the checks.
type Options struct {
	Library string // path of the driver library; "" = libcuda.so.1
	Device  string // UUID; "" = the first device
	Commit  string
	Seed    uint64 // of the inputs; 0 = from the clock
	Sizes   Sizes
	// Total is the time of all parts; 0 = StandardTime. A part that exceeds its share is
	// stopped.
	Total time.Duration
	// Only lists the parts to run; empty = all.
	Only []string
	// Self is the command that starts this program again so that it calls Child; empty
	// skips checks that need a second process.
	Self []string
	// Python is the interpreter for the checks with torch; "" skips them.
	Python string
	// PythonPath is the directory that contains spliced_connector. Scripts is the directory of
	// the check programs that use it.
	PythonPath string
	Scripts    string

	// Also are parts of the caller. They run after the parts of this package.
	Also []Part `json:"-"`
	// Isolated returns a command for one part, without starting it. The command calls RunPart
	// with these options and writes the rows to standard output. nil = parts run in this
	// process, and a part that hangs blocks the whole run.
	Isolated func(o *Options, part string) (*exec.Cmd, error) `json:"-"`
	// Stderr receives the output of the parts' processes; may be nil.
	Stderr io.Writer `json:"-"`
	// Progress is called with the next part, and its time limit.
	Progress func(part string, limit time.Duration) `json:"-"`
	// Save receives the report after every part, so that the caller can store it. An error ends
	// the run.
	Save func(*Report) error `json:"-"`
}

// Sizes scales the inputs.
type Sizes struct {
	Layers   int           // linear layers of the timed compose
	Heads    int           // value heads
	Dim      int           // key and value dimensions
	Segments int           // most segments of one compose
	Rows     int           // tokens of a segment for rotation
	Copy     int64         // bytes of plain copies
	Rounds   int           // alternating rounds; the median counts
	Rallies  int           // exchanges of the order check
	Requests int           // of the overhead check
	Window   time.Duration // of each measurement next to a neighbour
	Warm     time.Duration // of copies before anything is timed, for clocks to rise
	Timing   time.Duration // minimum time of one round of a timed kernel, which is repeated
}

// Full returns sizes for a real GPU: the linear layers of a 35B-A3B model, 1,024 tokens per
// segment, and working sets several times as large as the L2 cache.
func Full() Sizes {
	return Sizes{Layers: 30, Heads: 32, Dim: 128, Segments: 16, Rows: 1024, Copy: 1 << 30, Rounds: 15, Rallies: 2000, Requests: 2000, Window: 2 * time.Second,
		Warm: time.Second, Timing: 2 * time.Millisecond}
}

// Small returns sizes that a CPU emulates in seconds.
func Small() Sizes {
	return Sizes{Layers: 2, Heads: 2, Dim: 64, Segments: 3, Rows: 16, Copy: 1 << 20, Rounds: 3, Rallies: 20, Requests: 20, Window: 50 * time.Millisecond}
}

// name returns the name in reports.
func (z Sizes) name() string {
	switch z {
	case Full():
		return "full"
	case Small():
		return "small: its times mean nothing"
	}
	return "of the caller"
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

// Run makes all checks, part by part. An error means that there was no driver or no device,
// or that the report could not be saved.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	if o.Progress == nil {
		o.Progress = func(string, time.Duration) {}
	}
	if o.Save == nil {
		o.Save = func(*Report) error { return nil }
	}
	if o.Total == 0 {
		o.Total = StandardTime
	}
	info, err := find(o.Library, o.Device)
	if err != nil {
		return nil, err
	}
	o.Device = info.UUID.String()
	parts, err := (&check{Options: o}).parts()
	if err != nil {
		return nil, err
	}
	r := &Report{
		Device: info.Name, UUID: o.Device, Driver: fmt.Sprintf("%d.%d", info.Driver/1000, info.Driver%1000/10),
		Date: time.Now().UTC().Format(time.RFC3339), Commit: o.Commit, Seed: o.Seed, Sizes: o.Sizes.name(), Pending: names(parts),
	}
	return r, o.all(ctx, r, parts)
}

// all runs parts one after another, also after a part has failed.
func (o *Options) all(ctx context.Context, r *Report, parts []Part) error {
	begin := time.Now()
	if err := o.Save(r); err != nil {
		return err
	}
	for i := range parts {
		name, start := parts[i].Name, time.Now()
		limit := share(parts[i:], o.Total-time.Since(begin), o.Total)
		o.Progress(name, limit)
		err := ctx.Err()
		switch {
		case err != nil:
			err = fmt.Errorf("not run: %w", err)
		case limit <= 0:
			err = errors.New("not run: no time was left")
		default:
			err = o.one(ctx, &parts[i], limit, r)
		}
		if err != nil {
			r.Holds(name, err)
		}
		r.Parts = append(r.Parts, PartTime{name, time.Since(start).Seconds(), limit.Seconds()})
		r.Pending = names(parts[i+1:])
		if err := o.Save(r); err != nil {
			return err
		}
	}
	return nil
}

// one runs a part here or in a separate process.
func (o *Options) one(ctx context.Context, p *Part, limit time.Duration, r *Report) error {
	if o.Isolated != nil {
		cmd, err := o.Isolated(o, p.Name)
		if err != nil {
			return err
		}
		return isolated(ctx, cmd, limit, o.Stderr, r)
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, errTime)
	defer stop()
	return runPart(ctx, o, p.Name, r)
}

// RunPart runs one part and writes its rows as they come, one JSON object per line. The command
// of Options.Isolated calls it, with the values of o.Device and o.Seed that Run has set.
func RunPart(ctx context.Context, o *Options, part string, to io.Writer) error {
	out := json.NewEncoder(to)
	return runPart(ctx, o, part, &Report{each: func(row *Row) { _ = out.Encode(row) }})
}

func runPart(ctx context.Context, o *Options, name string, r *Report) error {
	c := &check{Options: *o, ctx: ctx, rng: rand.New(rand.NewPCG(o.Seed, seedOf(name))), report: r}
	c.Only = []string{name}
	parts, err := c.parts()
	if err != nil {
		return err
	}
	return parts[0].Run(ctx, r)
}

// onDevices opens both devices for a part and closes them.
func (c *check) onDevices(part string, run func() error) (err error) {
	if c.host, err = gpuipc.NewHost(gpuipc.HostOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.host.Close()) }()
	if c.gpu, err = cuda.Open(cuda.Options{Library: c.Library, Device: c.Device, AttachWait: time.Minute}); err != nil {
		return err
	}
	err = run()
	if closing := c.gpu.Close(); closing != nil {
		c.report.Holds(part+": the device closes with nothing left open", closing)
	}
	return err
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
