package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Two sizes of one model family (gated delta net with fp16 transitions and fp32 states, as
// in Qwen3-Next): segments of about 0.4 and of 64 MiB.
const (
	smallTokens = 16
	smallHeads  = 4
	largeTokens = 1568
	largeLayers = 20
	largeHeads  = 32
	flatTokens  = 512 // without linear layers: exactly 1 MiB
)

// benchProfile returns a profile of n linear layers and one attention layer of 2 heads of
// 256.
func benchProfile(name string, linear, valueHeads int) (*profile.Profile, error) {
	keyHeads := valueHeads / 2
	id := profile.Identity{Model: name, Weights: sha256.Sum256([]byte(name)), Tokenizer: "none", TPSize: 1}
	for range linear {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: keyHeads, ValueHeads: valueHeads, KeyDim: 128, ValueDim: 128,
			StateDType: profile.F32, TransitionDType: profile.F16,
			Conv: profile.Conv{Kernel: 4, Channels: []int{keyHeads * 128, keyHeads * 128, valueHeads * 128}, DType: profile.BF16},
		}})
	}
	id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
		KVHeads: 2, KeyDim: 256, ValueDim: 256, DType: profile.BF16, Keys: profile.AtZero,
		Rope: profile.Rope{Dims: 64, Theta: 1e7},
	}})
	return profile.New(id)
}

// tokensOf returns the token ids of segment i, unique to it.
func tokensOf(i, n int) []uint32 {
	out := make([]uint32, n)
	for j := range out {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i)<<32|uint64(j)))
		out[j] = binary.LittleEndian.Uint32(sum[:])
	}
	return out
}

// contents returns bytes for every part of a segment.
func contents(l profile.Layout) [][]byte {
	out := make([][]byte, len(l.Parts))
	for i, p := range l.Parts {
		out[i] = filled(p.Len)
	}
	return out
}

// moved returns the bytes of a layout's parts, without padding.
func moved(l profile.Layout) int64 {
	n := int64(0)
	for _, p := range l.Parts {
		n += p.Len
	}
	return n
}

// checkSizes returns an error if the segments do not have the sizes that the row names mention.
func checkSizes(small, large, flat profile.Layout) error {
	const mib = 1 << 20
	a, b, c := float64(small.Bytes)/mib, float64(large.Bytes)/mib, float64(flat.Bytes)/mib
	if a < 0.38 || a > 0.45 || b < 63 || b > 65 || c != 1 {
		return fmt.Errorf("segments of %.2f, %.2f and %.2f MiB are not those of the rows", a, b, c)
	}
	return nil
}
