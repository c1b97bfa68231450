package slabtest

import (
	"math/rand/v2"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// Random returns an aligned buffer of random bytes.
func Random(seed uint64, n int) []byte {
	b := slab.AlignedBuffer(n)
	rng := rand.New(rand.NewPCG(seed, 5))
	for i := 0; i+8 <= n; i += 8 {
		v := rng.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// Pieces cuts a buffer at random blocks.
func Pieces(rng *rand.Rand, b []byte, longest int) (bufs [][]byte) {
	for len(b) > 0 {
		n := min(len(b), (1+rng.IntN(longest))*slab.BlockBytes)
		bufs = append(bufs, b[:n])
		b = b[n:]
	}
	return bufs
}
