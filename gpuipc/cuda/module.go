package cuda

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

// module has the kernels, compiled by the driver for one device.
type module struct {
	handle    driver.Module
	functions map[string]driver.Function // all kernels by name
}

// loadModule compiles the kernels for the device of the current context and loads each of
// them now. Without that, drivers load a kernel at its first launch, and may then wait for
// all work of the context. loadModule also allows each kernel the most shared memory that
// any launch uses. Errors include the compiler's log.
func loadModule(api *driver.API) (*module, error) {
	text := kernels.PTX()
	handle, err := api.ModuleLoad(text)
	if err != nil {
		return nil, fmt.Errorf("compile kernels: %w", err)
	}
	m := &module{handle: handle, functions: map[string]driver.Function{}}
	for _, name := range kernels.Entries(text) {
		if err := m.load(api, name); err != nil {
			return nil, errors.Join(fmt.Errorf("load kernel %s: %w", name, err), m.unload(api))
		}
	}
	return m, nil
}

func (m *module) load(api *driver.API, name string) error {
	f, err := api.ModuleFunction(m.handle, name)
	if err == nil {
		err = api.FunctionLoad(f)
	}
	if err == nil {
		err = api.FunctionMaxDynamicShared(f, kernels.MaxShared)
	}
	m.functions[name] = f
	return err
}

// function returns the kernel with the given name.
func (m *module) function(name string) (driver.Function, error) {
	f, ok := m.functions[name]
	if !ok {
		return 0, fmt.Errorf("cuda: the module has no kernel %s: %w", name, gpuipc.ErrUnavailable)
	}
	return f, nil
}

func (m *module) unload(api *driver.API) error { return api.ModuleUnload(m.handle) }
