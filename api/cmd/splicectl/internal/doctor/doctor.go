// Package doctor verifies on this machine what spliced needs: features of the kernel, a reachable
// socket, memory that clients can read but not write, the GPU and its memory, agreement about
// layouts, and a round trip of one segment.
//
// It tests by acting as a client would, and cleans up afterwards. It never changes settings.
package doctor

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/api"
)

// States of a check.
const (
	OK   = "ok"
	Warn = "warn" // works with restrictions
	Fail = "fail" // engines get no hits, or are not safe
)

// Check is the result of one test.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`           // what was observed
	Remedy string `json:"remedy,omitempty"` // what to do, unless ok
}

// Options select the daemon to check.
type Options struct {
	Socket string      // engine socket
	Admin  *api.Client // nil = the admin REST is not checked, and the test segment stays in the cache
	// Tenant and TenantToken are what the checks name themselves; "" = the daemon's default tenant.
	Tenant      string
	TenantToken string
	// Library is the CUDA driver to load; "" = libcuda.so.1.
	Library string
}

// Run performs all checks. It stops the checks that need a daemon at the first failure, since the
// remaining ones would report the same.
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

// Worst returns the worst state of the checks.
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
