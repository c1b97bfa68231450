package extent

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The most bytes of a manifest, before and after compression. There is room for the token
// ids of the longest segment, and for the maximum of digests, parts and chunks.
const (
	MaxManifestBytes       = 4*profile.MaxTokens + 48<<20
	MaxStoredManifestBytes = MaxManifestBytes + MaxManifestBytes/128 + 1024 // zstd adds 3 bytes to each incompressible 128 KiB
)

// All calls share one encoder and one decoder. Both keep a pool of states, and EncodeAll and
// DecodeAll may be called concurrently. Frames have no checksums, because headers have them.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithEncoderCRC(false),
			zstd.WithSingleSegment(true), // so that every frame states its content size
			zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(fmt.Sprintf("extent: zstd encoder: %v", err)) // the options are constant
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(0),
			zstd.WithDecoderMaxMemory(MaxManifestBytes),
			zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(fmt.Sprintf("extent: zstd decoder: %v", err))
		}
		return d
	})
)

func compress(dst, content []byte) []byte {
	return encoder().EncodeAll(content, dst)
}

// decompress returns the content of a single frame. It allocates as many bytes as the
// frame states, at most MaxManifestBytes.
func decompress(b []byte) ([]byte, error) {
	if len(b) > MaxStoredManifestBytes {
		return nil, fmt.Errorf("stored manifest of %d bytes: %w", len(b), tier.ErrCorrupt)
	}
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return nil, fmt.Errorf("stored manifest: %v: %w", err, tier.ErrCorrupt)
	}
	if h.Skippable || !h.HasFCS || h.FrameContentSize > MaxManifestBytes {
		return nil, fmt.Errorf("stored manifest: frame of %d bytes: %w", h.FrameContentSize, tier.ErrCorrupt)
	}
	content, err := decoder().DecodeAll(b, make([]byte, 0, h.FrameContentSize))
	if err != nil {
		return nil, fmt.Errorf("stored manifest: %v: %w", err, tier.ErrCorrupt)
	}
	if uint64(len(content)) != h.FrameContentSize {
		return nil, fmt.Errorf("stored manifest: %d bytes of %d: %w", len(content), h.FrameContentSize, tier.ErrCorrupt)
	}
	return content, nil
}
