package gpucheck

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// typeName is an element type as people write it.
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

// plural is a count of segments.
func plural(n int) string {
	if n == 1 {
		return "1 segment"
	}
	return fmt.Sprintf("%d segments", n)
}

// either picks a word.
func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}
