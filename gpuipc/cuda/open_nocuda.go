package cuda

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Open answers ErrUnavailable: this build cannot load a driver.
func Open(o Options) (gpuipc.Accelerator, error) {
	if _, err := o.withDefaults(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("cuda: this binary was built with the tag nocuda: %w", gpuipc.ErrUnavailable)
}

// Devices answers ErrUnavailable: this build cannot load a driver.
func Devices(library string) ([]Info, error) {
	return nil, fmt.Errorf("cuda: this binary was built with the tag nocuda: %w", gpuipc.ErrUnavailable)
}
