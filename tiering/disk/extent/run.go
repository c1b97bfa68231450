package extent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// RunBytes is the length of a run as AppendRun writes it.
const RunBytes = runBytes

// AppendRun appends a run of whole blocks in 12 bytes, which Run parses.
func AppendRun(dst []byte, r slab.Run) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, r.Slab)
	dst = le.AppendUint32(dst, uint32(r.Off/BlockBytes))
	return le.AppendUint32(dst, uint32(r.Len/BlockBytes))
}

// Run parses the first 12 bytes of b.
func Run(b []byte) slab.Run {
	le := binary.LittleEndian
	return slab.Run{
		Slab: le.Uint32(b),
		Off:  int64(le.Uint32(b[4:])) * BlockBytes,
		Len:  int64(le.Uint32(b[8:])) * BlockBytes,
	}
}

// CheckRuns checks that runs can be encoded, and that a reader accepts them.
func CheckRuns(runs []slab.Run) error {
	_, err := checkRuns(runs)
	return err
}

func checkRuns(runs []slab.Run) (bytes int64, err error) {
	if len(runs) < 1 || len(runs) > MaxRuns {
		return 0, fmt.Errorf("%d runs", len(runs))
	}
	const most = math.MaxUint32 * int64(BlockBytes)
	for _, r := range runs {
		if r.Off < 0 || r.Off > most || r.Off%BlockBytes != 0 || r.Len <= 0 || r.Len > most || r.Len%BlockBytes != 0 {
			return 0, errors.New("run " + r.String())
		}
		bytes += r.Len
	}
	return bytes, nil
}

// Padded rounds up to whole blocks.
func Padded(n int64) int64 {
	return (n + BlockBytes - 1) / BlockBytes * BlockBytes
}

// PayloadBytes returns the payload size of an entry that is not coded.
func PayloadBytes(ranks int, rankBytes int64) int64 {
	return int64(ranks) * Padded(rankBytes)
}

// RankOffset returns the offset of a rank in the payload of an entry that is not coded.
func RankOffset(rank int, rankBytes int64) int64 {
	return int64(rank) * Padded(rankBytes)
}

// Chunks returns the number of chunks in n bytes; each has a digest.
func Chunks(n int64) int {
	return int((n + ChunkBytes - 1) / ChunkBytes)
}
