package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// Options configures a run.
type Options struct {
	Loops    int    // kills; each is followed by a restart and an audit
	Power    int    // losses of power, in this process
	Seed     uint64 // of the data and the moments of kills
	Segments int    // items, including checkpoints, submitted between two kills
	Binary   string // of spliced; empty = child.Find
	Driver   string // GPU driver library, to test copies in GPU memory too; empty = none
	// Dir is the directory for the daemon's disk directory and the log of acknowledgements,
	// which are kept. Empty = a temporary directory, which is kept only if the run found a
	// fault.
	Dir      string
	Progress func(line string) // nil = silent
}

func (o *Options) progress(format string, a ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, a...))
	}
}

// chapterLoops is the number of loops before the run continues with a new directory. Checkpoints
// are never removed and each audit looks up all of them, so audits on one directory take longer
// and longer.
const chapterLoops = 100

// Run tortures a daemon, which it starts, and a store in this process. An error means that this
// was not possible; faults that it found are in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	began := time.Now()
	r := &Report{Seed: o.Seed}
	kept := o.Dir
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "spliced-torture-")
		if err != nil {
			return nil, err
		}
		o.Dir = dir
	} else if err := emptyDir(o.Dir); err != nil {
		return nil, err
	}
	err := o.run(ctx, r)
	if kept == "" && err == nil && len(r.Failures()) == 0 {
		err = os.RemoveAll(o.Dir)
	} else {
		r.Dir = o.Dir
	}
	if err != nil {
		return nil, fmt.Errorf("seed %d, %s: %w", o.Seed, o.Dir, err)
	}
	r.Duration = time.Since(began).Seconds()
	return r, nil
}

func (o Options) run(ctx context.Context, r *Report) error {
	for left, seed := o.Loops, o.Seed; left > 0 && len(r.Failures()) == 0; seed++ {
		chapter := o
		chapter.Loops, chapter.Seed = min(left, chapterLoops), seed
		left -= chapter.Loops
		if err := os.RemoveAll(o.disk()); err != nil { // the previous chapter's directory; it had no faults
			return err
		}
		t := loops{options: chapter, first: r.Loops, all: o.Loops, rng: rand.New(rand.NewPCG(seed, 2)), moments: rand.New(rand.NewPCG(seed, 5)), report: r}
		if err := t.run(ctx); err != nil {
			return err
		}
	}
	r.rates()
	if o.Power > 0 {
		p := powerCuts{options: o, rng: rand.New(rand.NewPCG(o.Seed, 4)), report: r}
		return p.run(ctx)
	}
	return nil
}

// emptyDir creates a directory if necessary. It returns an error if the directory is not empty,
// because data of an earlier run would count as never submitted.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = errors.New(dir + " is not empty")
	}
	return err
}
