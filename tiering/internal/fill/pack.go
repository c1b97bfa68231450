package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A segment of a profile with a tolerance is packed once, after its last part has passed its
// digest check and before a lookup can find it. The heads of its transitions and end-states, and
// its rows if the profile has a tolerance for rows, are written in smaller forms whose errors
// were measured. All other parts are moved forward to follow the packed parts without gaps, and
// the pages that become free at the end are released. From then on the packed bytes are stored,
// sent, read and covered by the digests.

// packing describes a packed segment whose bytes are in place.
type packing struct {
	packed  profile.Packed
	parts   *plan.PartMap
	digests [][]uint64 // by rank
}

// packs reports whether an object is packed before it is published.
func packs(o *objects.Object) bool {
	return o.Kind == 0 && o.Profile.MaxError() > 0 && o.Phase != objects.Stripped && o.Spec.MayPack()
}

// pack packs a segment in place. The result is nil, and the segment unchanged, if packing would
// not make it smaller or would take longer than half of the time until the deadline of ctx.
// Between two parts, other work that needs the slot may run. An error is an error of the device.
func (fills *Fills) pack(ctx context.Context, o *objects.Object, digests [][]uint64) (*packing, error) {
	k := &packer{profile: o.Profile, plain: o.Layout()}
	for i := range o.Shares {
		views, unpin, err := fills.cat.Device.Pin(fills.cat.Objects.Memory.Ref(&o.Shares[i]), true)
		if errors.Is(err, gpuipc.ErrUnavailable) {
			return nil, nil // memory without addresses is left alone
		}
		if err != nil {
			return nil, tier.DeviceError(fmt.Sprintf("%s: pack", o.Name()), err)
		}
		defer unpin()
		k.shares = append(k.shares, views)
	}
	if !k.choose(ctx) {
		return nil, nil // no time for it
	}
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
	kernel            gpuipc.Packer
	scratch           []byte
	shares            [][][]byte // by rank, in place
	parts             [][][]byte // by rank and part, packed; nil = the part stays unchanged
	held              int64      // total bytes of parts
	transition, state float32    // largest errors
}

// packedAtOnce bounds the bytes of one segment's packed parts, which stay in temporary memory
// until all of them are known (a guess). Rows beyond this bound stay as they were written.
const packedAtOnce = 256 << 20

// choose packs the parts of all ranks into temporary memory. A part that does not get
// smaller on every rank stays unchanged. It returns false if there was not enough time.
func (k *packer) choose(ctx context.Context) bool {
	until := time.Time{}
	if end, ok := ctx.Deadline(); ok {
		until = time.Now().Add(time.Until(end) / 2)
	}
	for range k.shares {
		k.parts = append(k.parts, make([][]byte, len(k.plain.Parts)))
	}
	for i := range k.plain.Parts {
		p := &k.plain.Parts[i]
		if !k.profile.MayPack(p) {
			continue
		}
		if ctx.Err() != nil || !until.IsZero() && time.Now().After(until) {
			return false
		}
		k.part(i, p)
		gpuipc.Pause(ctx)
	}
	return true
}

// part packs one part on all ranks, if it gets smaller on each of them.
func (k *packer) part(i int, p *profile.Part) {
	rows := plan.IsRows(p.Kind)
	if rows && k.held+int64(len(k.shares))*p.Len/2 > packedAtOnce {
		return
	}
	if most := profile.PackedMost(p); int64(cap(k.scratch)) < most {
		k.scratch = make([]byte, most)
	}
	shape, tolerance, of := p.PackedShape(), k.profile.Tolerance(), gpuipc.PackStates
	switch {
	case p.Kind == profile.PartT:
		of = gpuipc.PackTransitions
	case rows:
		of, tolerance = gpuipc.PackRows, k.profile.RowTolerance()
	}
	var largest float32
	held := int64(0)
	for rank, share := range k.shares {
		n, most := k.kernel.Pack(k.scratch[:profile.PackedMost(p)], &gpuipc.PackJob{
			Src: gpuipc.Window(share, p.Off, p.Len), Type: gpuipc.DType(p.DType),
			Heads: shape[0], Rows: shape[1], Cols: shape[2],
			Of: of, Tolerance: tolerance,
		})
		if n == 0 || int64(n) >= p.Len {
			for rank := range k.parts {
				k.parts[rank][i] = nil
			}
			return
		}
		k.parts[rank][i] = slices.Clone(k.scratch[:n])
		held += int64(n)
		largest = max(largest, most)
	}
	k.held += held
	if p.Kind == profile.PartT {
		k.transition = max(k.transition, largest)
	} else {
		k.state = max(k.state, largest)
	}
}

// lay returns the layout for all ranks. The length of each part is the length that its packed
// form has on the rank where it is longest. The result is nil if no part is packed.
func (k *packer) lay(interior int) (*packing, error) {
	var lengths []int64
	gained := false
	for i := range k.plain.Parts {
		if !k.profile.MayPack(&k.plain.Parts[i]) {
			continue
		}
		n := int64(0)
		for rank := range k.parts {
			n = max(n, int64(len(k.parts[rank][i])))
		}
		lengths, gained = append(lengths, n), gained || n > 0
	}
	if !gained {
		return nil, nil // it is as small as can be
	}
	packed := profile.PackedOf(k.transition, k.state, lengths)
	parts, err := k.profile.PackedParts(interior, packed)
	if err != nil {
		return nil, fmt.Errorf("pack: %w: %w", err, tier.ErrInvalid)
	}
	return &packing{packed: packed, parts: parts}, nil
}

// write moves one rank's parts into place, in order, and returns their digests. No part is longer
// than before, so no part starts after its old place. No part is overwritten before it has moved.
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
			digests = gpuipc.AppendDigests(digests, packed)
			continue
		}
		copyRuns(gpuipc.Window(share, p.Off, p.Len), gpuipc.Window(share, was.Off, was.Len))
		digests = append(digests, before[k.plain.FirstChunk[i]:k.plain.FirstChunk[i+1]]...)
	}
	clearRuns(gpuipc.Window(share, end, to.Bytes-end))
	return digests
}

// copyRuns copies runs of memory to other runs of the same total length. The destination
// may overlap the source if it starts earlier.
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
