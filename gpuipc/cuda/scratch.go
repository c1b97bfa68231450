package cuda

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

const (
	scratchFirst = 1 << 20  // bytes of a lane's first block of scratch memory
	scratchKept  = 64 << 20 // if a lane has more bytes, they are freed after the operation
	scratchAlign = 256
)

// scratch is device memory for one operation. Operands with several addresses are gathered
// there, and results stay there until they are copied to their places.
type scratch struct {
	blocks []scratchBlock // all but the last are full
	used   int64          // bytes of the last block
	want   int64          // bytes that the largest operation needed, up to scratchKept
}

type scratchBlock struct {
	at    driver.DevicePtr
	bytes int64
}

// take returns n bytes, which are valid until the operation ends.
func (s *scratch) take(l *lane, n int64) (driver.DevicePtr, error) {
	n = (n + scratchAlign - 1) / scratchAlign * scratchAlign
	if k := len(s.blocks) - 1; k >= 0 && s.blocks[k].bytes-s.used >= n {
		at := s.blocks[k].at + driver.DevicePtr(s.used)
		s.used += n
		return at, nil
	}
	size := max(n, s.want, scratchFirst)
	at, err := l.dev.api.MemAlloc(size)
	if err != nil && size > n {
		size = n
		at, err = l.dev.api.MemAlloc(size)
	}
	if err != nil {
		return 0, fmt.Errorf("cuda: %d bytes of scratch: %w", n, l.dev.fail(err))
	}
	s.blocks = append(s.blocks, scratchBlock{at, size})
	s.used = n
	return at, nil
}

// reset frees what was taken, for the next operation. No work in flight may use it. If
// there were several blocks, the next operation gets one block of their total size.
func (s *scratch) reset(l *lane) {
	s.used = 0
	if len(s.blocks) == 0 || len(s.blocks) == 1 && s.blocks[0].bytes <= scratchKept {
		return
	}
	total := int64(0)
	for _, b := range s.blocks {
		total += b.bytes
	}
	s.want = min(total, scratchKept)
	s.close(l.dev)
}

func (s *scratch) close(d *device) {
	for _, b := range s.blocks {
		_ = d.api.MemFree(b.at)
	}
	s.blocks, s.used = nil, 0
}
