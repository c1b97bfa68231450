package cuda

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Compose has no kernel yet.
func (d *device) Compose(context.Context, *gpuipc.ComposeJob) error {
	return fmt.Errorf("cuda: %s: %w", gpuipc.OpCompose, gpuipc.ErrUnavailable)
}

// ComposeAll has no kernel yet.
func (d *device) ComposeAll(context.Context, []gpuipc.ComposeJob) error {
	return fmt.Errorf("cuda: %s: %w", gpuipc.OpCompose, gpuipc.ErrUnavailable)
}
