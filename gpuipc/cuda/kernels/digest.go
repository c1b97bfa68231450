package kernels

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// DigestJob requests the digests of the chunks of one object: gpuipc.DigestBytes of each
// gpuipc.ChunkBytes from Src on, where the last chunk may be shorter. The digests are
// written to Out, as Chunks(Bytes) numbers of 8 bytes, little-endian. An object with
// several addresses needs one job for each address, and may be cut only between chunks.
type DigestJob struct {
	Src   uint64 // any alignment; multiples of 16 are several times faster
	Bytes int64
	Out   uint64
}

const (
	digestThreads = 288
	// digestShared is the size of two buffers. Each buffer has the sums of 64 runs of 1024
	// bytes. The sums of one run take 64 bytes.
	digestShared = 2 * 64 * 64
	// maxDigests is the most chunks of a launch: 16 TiB, with 384 MiB of tables.
	maxDigests = 16 << 20
)

// Digests builds the launches of spliced_digest: one, or none if there are no chunks. The
// kernel reads the memory once and needs no working memory. One chunk takes the time of a
// thousand dependent steps. Many chunks run at the speed of the memory.
func Digests(jobs []DigestJob) ([]Launch, error) {
	var tables words
	chunks := 0
	for i := range jobs {
		a := &jobs[i]
		if err := a.check(); err != nil {
			return nil, fmt.Errorf("digest, job %d: %w", i, err)
		}
		n := gpuipc.Chunks(a.Bytes)
		if chunks += n; chunks > maxDigests {
			return nil, fmt.Errorf("digest: more than %d chunks: %w", maxDigests, gpuipc.ErrInvalid)
		}
		tables = slices.Grow(tables, 24*n)
		for off := int64(0); off < a.Bytes; off += gpuipc.ChunkBytes {
			bytes := min(a.Bytes-off, gpuipc.ChunkBytes)
			tables.u64(a.Src+uint64(off), a.Out+8*uint64(off/gpuipc.ChunkBytes), uint64(bytes))
		}
	}
	if chunks == 0 {
		return nil, nil
	}
	return []Launch{{
		Name: "spliced_digest", Grid: [3]uint32{uint32(chunks), 1, 1}, Block: [3]uint32{digestThreads, 1, 1},
		Shared: digestShared, Args: arguments(), Tables: tables,
	}}, nil
}

func (a *DigestJob) check() error {
	end := addresses{at: a.Src}
	end.add(1, uint64(a.Bytes))
	if a.Bytes < 0 || a.Bytes > maxDigests*gpuipc.ChunkBytes ||
		a.Bytes > 0 && (a.Src == 0 || a.Out == 0 || a.Out%8 != 0 || end.over) {
		return fmt.Errorf("%d bytes at %#x to %#x: %w", a.Bytes, a.Src, a.Out, gpuipc.ErrInvalid)
	}
	return nil
}
