package tiering

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A segment of a profile with a tolerance is packed once, when its last part has been
// compared with its writer's digests and before anybody can find it: the heads of its
// transitions and end-states are written in forms of fewer bytes whose errors were measured,
// all other parts follow them, and the pages behind are free again. What is stored, sent
// and read from then on, and what digests are of, is the packed segment.

// packing is a packed segment whose bytes are in place.
type packing struct {
	packed  profile.Packed
	parts   *plan.PartMap
	digests [][]uint64 // by rank
}

// packs tells whether an object is packed before it is published.
func packs(o *objects.Object) bool {
	return o.Kind == 0 && o.Profile.Tolerance() > 0 && o.Phase != objects.Stripped
}

// pack packs a segment where it lies, or leaves it as it is where that would not make it
// smaller: then it is nil. An error is one of the device.
func (s *Store) pack(o *objects.Object, digests [][]uint64) (*packing, error) {
	s.packers <- struct{}{}
	defer func() { <-s.packers }()
	k := &packer{profile: o.Profile, plain: o.Layout()}
	for i := range o.Shares {
		views, unpin, err := s.dev.Pin(s.objects.Ref(&o.Shares[i]), true)
		if errors.Is(err, gpuipc.ErrUnavailable) {
			return nil, nil //nolint:nilnil // memory without addresses is left alone
		}
		if err != nil {
			return nil, tier.DeviceError(fmt.Sprintf("%s: pack", o.Name()), err)
		}
		defer unpin()
		k.shares = append(k.shares, views)
	}
	k.choose()
	out, err := k.lay(o.End - o.Begin)
	if out == nil || err != nil {
		return nil, err
	}
	for rank := range k.shares {
		out.digests = append(out.digests, k.write(rank, out.parts, digests[rank]))
	}
	return out, nil
}

// packer packs one segment.
type packer struct {
	profile           *objects.Profile
	plain             *plan.PartMap
	shares            [][][]byte // by rank, where it lies
	parts             [][][]byte // by rank and part, packed; nil = as it is
	transition, state float32    // largest errors
}

// choose packs the parts of all ranks into memory of their own, several at a time.
func (k *packer) choose() {
	type one struct{ rank, part int }
	var todo []one
	for rank := range k.shares {
		k.parts = append(k.parts, make([][]byte, len(k.plain.Parts)))
		for i := range k.plain.Parts {
			if k.profile.MayPack(&k.plain.Parts[i]) {
				todo = append(todo, one{rank, i})
			}
		}
	}
	var next atomic.Int64
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range min(len(todo), packWorkers()) {
		workers.Go(func() {
			w := partPacker{profile: k.profile}
			for i := int(next.Add(1)) - 1; i < len(todo); i = int(next.Add(1)) - 1 {
				at := todo[i]
				k.parts[at.rank][at.part] = w.pack(k.shares[at.rank], &k.plain.Parts[at.part])
			}
			mu.Lock()
			defer mu.Unlock()
			k.transition, k.state = max(k.transition, w.transition), max(k.state, w.state)
		})
	}
	workers.Wait()
}

// packWorkers is how many parts of a segment are packed at once, where half as many
// segments as there are processors are packed at the same time at most (guesses).
func packWorkers() int { return max(1, runtime.GOMAXPROCS(0)/4) }

// partPacker packs one part after another, and remembers the largest errors.
type partPacker struct {
	profile           *objects.Profile
	kernel            gpuipc.Packer
	scratch           []byte
	transition, state float32
}

func (k *partPacker) pack(share [][]byte, p *profile.Part) []byte {
	if most := profile.PackedMost(p); int64(cap(k.scratch)) < most {
		k.scratch = make([]byte, most)
	}
	n, errs := k.kernel.Pack(k.scratch[:profile.PackedMost(p)], &gpuipc.PackJob{
		Src: gpuipc.Window(share, p.Off, p.Len), Type: gpuipc.DType(p.DType),
		Heads: p.Shape[0], Rows: p.Shape[1], Cols: p.Shape[2],
		Transition: p.Kind == profile.PartT, Tolerance: k.profile.Tolerance(),
	})
	for _, e := range errs {
		switch {
		case p.Kind == profile.PartT:
			k.transition = max(k.transition, atLeast(e.Spectral))
		case e.Norm > 0:
			k.state = max(k.state, atLeast(e.Frobenius/e.Norm))
		}
	}
	return slices.Clone(k.scratch[:n])
}

// atLeast is the least F32 that is not below x.
func atLeast(x float64) float32 {
	y := float32(x)
	if float64(y) < x {
		y = math.Nextafter32(y, float32(math.Inf(1)))
	}
	return y
}

// lay finds the layout of all ranks: the longest of each part. It is nil where that is not
// smaller than what was written, or a part would move behind its place.
func (k *packer) lay(interior int) (*packing, error) {
	var lengths []int64
	for i := range k.plain.Parts {
		if k.parts[0][i] == nil {
			continue
		}
		n := int64(0)
		for rank := range k.parts {
			n = max(n, int64(len(k.parts[rank][i])))
		}
		lengths = append(lengths, n)
	}
	packed := profile.PackedOf(k.transition, k.state, lengths)
	parts, err := k.profile.PackedParts(interior, packed)
	if err != nil {
		return nil, fmt.Errorf("pack: %w: %w", err, tier.ErrInvalid)
	}
	for i := range parts.Parts {
		if parts.Parts[i].Off > k.plain.Parts[i].Off {
			return nil, nil //nolint:nilnil // nothing is gained
		}
	}
	if parts.Bytes >= k.plain.Bytes {
		return nil, nil //nolint:nilnil // nothing is gained
	}
	return &packing{packed: packed, parts: parts}, nil
}

// write puts one rank's parts in place, in order: no part begins behind where it lay, so that
// none is overwritten before it has moved. It returns their digests.
func (k *packer) write(rank int, to *plan.PartMap, before []uint64) []uint64 {
	share := k.shares[rank]
	digests := make([]uint64, 0, to.Chunks())
	end := int64(0)
	for i := range to.Parts {
		p, was := &to.Parts[i], &k.plain.Parts[i]
		clearRuns(gpuipc.Window(share, end, p.Off-end))
		end = p.Off + p.Len
		if packed := k.parts[rank][i]; packed != nil {
			packed = append(packed, make([]byte, p.Len-int64(len(packed)))...)
			copyRuns(gpuipc.Window(share, p.Off, p.Len), [][]byte{packed})
			for at := int64(0); at < p.Len; at += gpuipc.ChunkBytes {
				digests = append(digests, gpuipc.DigestBytes(packed[at:min(at+gpuipc.ChunkBytes, p.Len)]))
			}
			continue
		}
		copyRuns(gpuipc.Window(share, p.Off, p.Len), gpuipc.Window(share, was.Off, was.Len))
		digests = append(digests, before[k.plain.FirstChunk[i]:k.plain.FirstChunk[i+1]]...)
	}
	clearRuns(gpuipc.Window(share, end, to.Bytes-end))
	return digests
}

// copyRuns copies what lies in some runs to others of the same length, which may overlap
// them from before.
func copyRuns(dst, src [][]byte) {
	for len(dst) > 0 && len(src) > 0 {
		n := copy(dst[0], src[0])
		if dst[0], src[0] = dst[0][n:], src[0][n:]; len(dst[0]) == 0 {
			dst = dst[1:]
		}
		if len(src[0]) == 0 {
			src = src[1:]
		}
	}
}

func clearRuns(runs [][]byte) {
	for _, r := range runs {
		clear(r)
	}
}
