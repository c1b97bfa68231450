package cuda

import (
	"context"
	"encoding/binary"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
)

const (
	// digestPiece is the number of bytes hashed between two checks of the context.
	digestPiece = 512 << 20
	// straddlingPiece replaces digestPiece for objects with several addresses. All their
	// chunks may have to be gathered, so straddlingPiece also bounds the scratch memory.
	straddlingPiece = 32 << 20
)

// digests lets the device hash every chunk of o, after the work that is on the stream
// already.
func (l *lane) digests(ctx context.Context, o object, out []uint64) error {
	if o.n == 0 {
		return nil
	}
	if err := l.openStaging(); err != nil {
		return err
	}
	piece := int64(digestPiece)
	if !o.one() {
		piece = straddlingPiece
	}
	room := int64(gpuipc.Chunks(min(o.n, piece))) * 8
	results, err := l.scratch.take(l, 2*room)
	if err != nil {
		return err
	}
	h := hashing{lane: l}
	return l.pieces(ctx, o.n, piece, func(slot int, off, n int64) error {
		at := results + driver.DevicePtr(int64(slot)*room)
		if err := h.piece(o.slice(off, n), at); err != nil {
			return err
		}
		return l.dev.api.MemcpyDtoHAsync(unsafe.Pointer(&l.slot(slot)[0]), at, int64(gpuipc.Chunks(n))*8, l.stream)
	}, func(slot int, off, n int64) error {
		b, first := l.slot(slot), off/gpuipc.ChunkBytes
		for i := range gpuipc.Chunks(n) {
			out[first+int64(i)] = binary.LittleEndian.Uint64(b[8*i:])
		}
		return nil
	})
}

// hashing enqueues the hashes of the pieces of one object.
type hashing struct {
	lane *lane
	room []driver.DevicePtr // scratch memory for chunks that have several addresses
	used int
}

// piece enqueues the hashes of all chunks of o. They are written to the device address at.
func (h *hashing) piece(o object, at driver.DevicePtr) error {
	h.used = 0 // the scratch can be used again: on the stream, the previous piece is hashed before this piece is gathered
	var jobs []kernels.DigestJob
	if o.one() {
		jobs = []kernels.DigestJob{{Src: uint64(o.at()), Bytes: o.n, Out: uint64(at)}}
	} else {
		for off := int64(0); off < o.n; off += gpuipc.ChunkBytes {
			src, err := h.chunk(o.slice(off, min(gpuipc.ChunkBytes, o.n-off)))
			if err != nil {
				return err
			}
			jobs = append(jobs, kernels.DigestJob{Src: uint64(src.at), Bytes: src.n, Out: uint64(at) + 8*uint64(off/gpuipc.ChunkBytes)})
		}
	}
	launches, err := kernels.Digests(jobs)
	if err != nil {
		return err
	}
	return h.lane.launch(launches)
}

// chunk returns the address of one chunk, gathered into scratch memory if it has several
// addresses.
func (h *hashing) chunk(o object) (run, error) {
	if o.one() {
		return run{o.at(), o.n}, nil
	}
	h.lane.dev.gathered.Add(1)
	if h.used == len(h.room) {
		at, err := h.lane.scratch.take(h.lane, gpuipc.ChunkBytes)
		if err != nil {
			return run{}, err
		}
		h.room = append(h.room, at)
	}
	at := h.room[h.used]
	h.used++
	return run{at, o.n}, h.lane.copyRuns(object{[]run{{at, o.n}}, o.n}, o)
}
