package gpucheck

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// typeName returns the usual name of an element type.
func typeName(t gpuipc.DType) string {
	switch t {
	case kernel.F32:
		return "fp32"
	case kernel.F16:
		return "fp16"
	case kernel.BF16:
		return "bf16"
	}
	return fmt.Sprintf("type %d", t)
}

func transitionName(t gpuipc.Transition) string {
	switch t {
	case kernel.Scalar:
		return "scalar"
	case kernel.Diagonal:
		return "diagonal"
	case kernel.Dense:
		return "dense"
	}
	return fmt.Sprintf("transition %d", t)
}

// plural returns a count of segments in words.
func plural(n int) string {
	if n == 1 {
		return "1 segment"
	}
	return fmt.Sprintf("%d segments", n)
}

// either returns a if yes, otherwise b.
func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}
