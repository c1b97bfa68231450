package codec

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Stats describes a stream.
type Stats struct {
	DType     kernel.DType
	Chunk     int   // raw bytes of a chunk
	Raw       int64 // bytes before encoding
	Stored    int64 // bytes of the stream
	Chunks    int
	Unsplit   int // chunks stored unchanged, since splitting did not make them smaller
	Constants int // chunks in which all exponents are equal
}

// Ratio returns raw over stored bytes, 1 for an empty stream.
func (s Stats) Ratio() float64 {
	if s.Raw == 0 {
		return 1
	}
	return float64(s.Raw) / float64(s.Stored)
}

// Inspect reads the header and the table of a stream. It checks the lengths of the chunks,
// but not their contents. It returns ErrCorrupt if the bytes are not a stream.
func Inspect(stream []byte) (Stats, error) {
	h, err := parse(stream)
	if err != nil {
		return Stats{}, fmt.Errorf("inspect %d bytes: %w", len(stream), err)
	}
	s := Stats{DType: h.dt, Chunk: h.chunk, Raw: int64(h.raw), Stored: int64(len(stream)), Chunks: h.chunks()}
	err = h.walk(stream, func(_ int, e entry, _ int) {
		switch {
		case e.verbatim():
			s.Unsplit++
		case e.form(0) == oneForm:
			s.Constants++
		}
	})
	if err != nil {
		return Stats{}, fmt.Errorf("inspect %d bytes: %w", len(stream), err)
	}
	return s, nil
}
