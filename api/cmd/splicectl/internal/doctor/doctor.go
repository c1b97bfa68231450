// Package doctor proves on this machine what spliced needs: features of the
// kernel, a socket that can be reached, memory that clients can read and not
// write, the GPU and its memory, agreement about layouts, and one segment's way
// in and out.
//
// It tests by doing, as a client would, and cleans up behind itself. It never
// changes settings.
package doctor

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/api"
)

// States of a check.
const (
	OK   = "ok"
	Warn = "warn" // works with less
	Fail = "fail" // engines get no hits, or are not safe
)

// Check is one thing that was tried.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`           // what was seen
	Remedy string `json:"remedy,omitempty"` // what to do, unless ok
}

// Options say which daemon to look at.
type Options struct {
	Socket string      // engine socket
	Admin  *api.Client // nil = not checked, and the test segment cannot be removed
	// Library is the CUDA driver that this process loads; "" = libcuda.so.1.
	Library string
}

// Run does all checks. Those that need a daemon end at the first that fails,
// since the rest could only say the same.
func Run(ctx context.Context, o Options) []Check {
	checks := machine()
	steps := []func(context.Context, *visit) []Check{
		checkSocket, checkAttach, checkMemory, checkAdmin, checkPeers, checkObjectStore, checkGPU, checkRoundTrip,
	}
	v := &visit{options: o}
	defer v.close()
	for _, step := range steps {
		got := step(ctx, v)
		checks = append(checks, got...)
		if Worst(got) == Fail {
			break
		}
	}
	return checks
}

// Worst is the worst state among checks.
func Worst(checks []Check) string {
	worst := OK
	for _, c := range checks {
		if c.State == Fail || c.State == Warn && worst == OK {
			worst = c.State
		}
	}
	return worst
}

func ok(name, format string, a ...any) Check {
	return Check{Name: name, State: OK, Detail: fmt.Sprintf(format, a...)}
}

func warn(name, remedy, format string, a ...any) Check {
	return Check{Name: name, State: Warn, Remedy: remedy, Detail: fmt.Sprintf(format, a...)}
}

func fail(name, remedy, format string, a ...any) Check {
	return Check{Name: name, State: Fail, Remedy: remedy, Detail: fmt.Sprintf(format, a...)}
}
