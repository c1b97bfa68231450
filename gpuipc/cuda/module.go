package cuda

import (
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// module is the kernels as the driver compiled them for one device.
type module struct {
	handle driver.Module

	mu struct {
		sync.Mutex
		functions map[string]function
	}
}

type function struct {
	handle driver.Function
	shared uint32 // dynamic shared memory that was asked for
}

// freeShared is the dynamic shared memory that needs no asking.
const freeShared = 48 << 10

// loadModule compiles the kernels for the current context's device. An error
// carries the compiler's log.
func loadModule(api *driver.API) (*module, error) {
	handle, err := api.ModuleLoad(kernels.PTX())
	if err != nil {
		return nil, fmt.Errorf("compile kernels: %w", err)
	}
	m := &module{handle: handle}
	m.mu.functions = map[string]function{}
	return m, nil
}

// function finds the kernel of a launch and lets it have its shared memory. The
// lock is held over driver calls that are made once for each kernel.
func (m *module) function(api *driver.API, l *kernels.Launch) (driver.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.mu.functions[l.Name]
	if !ok {
		handle, err := api.ModuleFunction(m.handle, l.Name)
		if err != nil {
			return 0, err
		}
		f.handle = handle
	}
	if l.Shared > freeShared && l.Shared > f.shared {
		if err := api.FunctionMaxDynamicShared(f.handle, int(l.Shared)); err != nil {
			return 0, fmt.Errorf("%s with %d bytes of shared memory: %w", l.Name, l.Shared, err)
		}
		f.shared = l.Shared
	}
	m.mu.functions[l.Name] = f
	return f.handle, nil
}

func (m *module) unload(api *driver.API) error { return api.ModuleUnload(m.handle) }
