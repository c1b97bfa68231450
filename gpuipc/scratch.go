package gpuipc

import (
	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// scratch is memory that one worker reuses from task to task. It is never larger than one
// batch of steps or a few rows need.
type scratch struct {
	hasher xxh3.Hasher

	kernel kernel.Scratch
	steps  []kernel.Step
	state  []byte
	gather [][]byte // T, S and Before of step i of a batch at 3i, 3i+1, 3i+2

	row, turned []byte
	cos, sin    []float32
	wide        []float32 // numbers of unpacked rows
}

// buffer returns gather slot i.
func (s *scratch) buffer(i int) *[]byte {
	for len(s.gather) <= i {
		s.gather = append(s.gather, nil)
	}
	return &s.gather[i]
}

// grown returns *buf with length n, contents undefined.
func grown[E byte | float32](buf *[]E, n int) []E {
	if cap(*buf) < n {
		// Large enough that the allocation is aligned for elements of any type.
		*buf = make([]E, max(n, 4096))
	}
	return (*buf)[:n]
}
