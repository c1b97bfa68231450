package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Part is a group of checks that depend on each other. Run adds rows to the report; an error
// that it returns becomes a row. The context of Run ends at the part's time limit.
type Part struct {
	Name string
	// Limit is the maximum time of the part if all parts together have StandardTime. If
	// Options.Total differs from StandardTime, all limits are scaled by the same factor. If a part
	// ends early, later parts may use its remaining time.
	Limit time.Duration
	Run   func(ctx context.Context, r *Report) error
}

// StandardTime is the default time of all parts together. With this time, half an hour on a
// borrowed GPU suffices for two runs.
const StandardTime = 8 * time.Minute

// own returns the parts of this package, in the order in which they run: first those that tell
// most about an unknown GPU.
func (c *check) own() []Part {
	bare := func(name string, limit time.Duration, run func() error) Part {
		return Part{name, limit, func(ctx context.Context, r *Report) error {
			c.ctx, c.report = ctx, r
			return run()
		}}
	}
	part := func(name string, limit time.Duration, run func() error) Part {
		return bare(name, limit, func() error { return c.onDevices(name, run) })
	}
	parts := []Part{
		bare("calls of the driver", 20*time.Second, c.calls),
		part("memory in a second process", 8*time.Second, c.shared),
	}
	for _, k := range c.agreements() {
		parts = append(parts, part(againstCPU+k.name, 8*time.Second, k.run))
	}
	return append(parts,
		part("speed of dense compose and rotate", 10*time.Second, c.speed),
		part("speed of packed compose", 8*time.Second, func() error { return c.timedBeside(c.packedSpeed) }),
		part("speed of other kernels", 10*time.Second, c.otherSpeed),
		part("speed of decoding", 10*time.Second, func() error { return c.timedBeside(c.decodeSpeed) }),
		part("torch maps the arena", 18*time.Second, func() error { return c.script("torch_view.py") }),
		part("torch doing the same", 20*time.Second, func() error { return c.script("torch_speed.py") }),
		part("gated delta rule of FLA", 60*time.Second, func() error { return c.script("gated_delta.py") }),
		part("torch and FLA decoding", 45*time.Second, func() error { return c.script("decode_speed.py") }),
		part("order between two processes", 10*time.Second, c.ordered),
		part("streams that wait", 25*time.Second, c.rescued),
		part("a busy neighbour", 26*time.Second, c.neighbour),
		part("copies between host and device", 12*time.Second, c.transfers),
		part("fixed cost of a request", 8*time.Second, c.overhead),
	)
}

// againstCPU is the prefix of the names of parts that compare kernels of one kind with the CPU.
// Each kind is a separate part, because a kernel that faults destroys its context.
const againstCPU = "against the CPU: "

// KernelParts returns the names of the parts that run every kernel on small inputs, for
// tools that inspect kernels.
func KernelParts() []string {
	var out []string
	for _, k := range (&check{}).agreements() {
		out = append(out, againstCPU+k.name)
	}
	return out
}

// errTooMany means that the limits of all parts are too long: not every part could get half of
// its limit.
var errTooMany = errors.New("parts want more time than there is")

// parts returns the requested parts, or an error that names an unknown one.
func (c *check) parts() ([]Part, error) {
	all := append(c.own(), c.Also...)
	var most time.Duration
	for i := range all {
		most += all[i].Limit
	}
	if most/2 > StandardTime*9/10 {
		return nil, fmt.Errorf("limits of %v for %v: %w", most, StandardTime, errTooMany)
	}
	if len(c.Only) == 0 {
		return all, nil
	}
	for _, name := range c.Only {
		if !slices.ContainsFunc(all, func(p Part) bool { return p.Name == name }) {
			return nil, fmt.Errorf("no part %q, want some of %q", name, names(all))
		}
	}
	return slices.DeleteFunc(all, func(p Part) bool { return !slices.Contains(c.Only, p.Name) }), nil
}

func names(parts []Part) []string {
	var out []string
	for i := range parts {
		out = append(out, parts[i].Name)
	}
	return out
}

// share returns the time for the first of the remaining parts: the limit of this part, or less
// if a later part would otherwise get less than half of its own limit. The parameter left is the
// remaining time, and total is the time of all parts.
func share(parts []Part, left, total time.Duration) time.Duration {
	stretch := float64(total) / float64(StandardTime)
	limit := func(p Part) time.Duration { return time.Duration(float64(p.Limit) * stretch) }
	for _, later := range parts[1:] {
		left -= limit(later) / 2
	}
	return min(limit(parts[0]), left)
}

// seedOf returns the seed of a part. Its random numbers therefore do not depend on which parts
// ran before.
func seedOf(name string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(strings.ToLower(name)) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}
