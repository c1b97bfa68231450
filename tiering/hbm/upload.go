package hbm

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// upload is one copy in flight into HBM. The parts of the copy are moved in pieces. Each
// piece is verified: the device computes the digests of the destination, and they must be
// those with which the object was published.
type upload struct {
	cache *Cache
	copy  *objects.Object
	to    gpuipc.Ref // memory of the copy
	rank  int
	nodes []uploadNode // the object, or the chain of a checkpoint from the root
	from  []uint64     // published digests of the object's share

	corrupt atomic.Pointer[objects.Object] // a node whose bytes in memory are wrong

	digests []uint64   // digests of the copy's parts, set when all pieces are verified
	plain   [][]uint64 // digests of parts whose rows were unpacked, by part; nil for other parts
}

// uploadNode describes an object in memory at the time when the promotion began.
type uploadNode struct {
	object  *objects.Object
	layout  *plan.PartMap
	share   gpuipc.Ref
	digests []uint64
}

// uploadPiece is the contribution of one node to one part of a copy.
type uploadPiece struct {
	to, from gpuipc.Ref
	want     []uint64
	part     int // index of the part in the copy
	layer    int
	object   *objects.Object
	packed   *profile.Part // set for rows that are packed in memory but not in the copy
}

// newUpload records the locations of all parts. The caller holds the store's lock. Extents
// and digests are replaced, never modified, so the recorded ones stay valid while the
// object is in use.
func (h *Cache) newUpload(c, o *objects.Object, rank int) *upload {
	up := &upload{cache: h, copy: c, to: h.o.Objects.Memory.ShareOf(c, rank), rank: rank, from: o.Shares[rank].Digests}
	up.nodes = make([]uploadNode, o.Depth)
	for i := o.Depth - 1; i >= 0; i-- {
		up.nodes[i] = uploadNode{object: o, layout: o.Layout(), share: h.o.Objects.Memory.ShareOf(o, rank), digests: o.Shares[rank].Digests}
		o = o.Parent
	}
	return up
}

// piecesAtOnce is the number of pieces of a copy in flight. One crosses the bus while
// another is hashed (a guess).
const piecesAtOnce = 4

// run copies and verifies all pieces.
func (up *upload) run(ctx context.Context) error {
	pieces, err := up.pieces()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var workers sync.WaitGroup
	var once sync.Once
	for range min(piecesAtOnce, len(pieces)) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(pieces) {
					return
				}
				if e := up.move(ctx, &pieces[i]); e != nil {
					once.Do(func() { err = e })
					cancel()
					return
				}
			}
		})
	}
	workers.Wait()
	if err != nil {
		return err
	}
	return up.hash(ctx)
}

// pieces lists the pieces. For a checkpoint, a part has the rows of all nodes of its
// chain, one after another. States and convolution tails come from the last node.
func (up *upload) pieces() ([]uploadPiece, error) {
	l := up.copy.Layout()
	last := len(up.nodes) - 1
	up.plain = make([][]uint64, len(l.Parts))
	var pieces []uploadPiece
	for i := range l.Parts {
		part := &l.Parts[i]
		to := up.to.Slice(part.Off, part.Len)
		nodes := up.nodes[last:]
		if up.copy.Kind != 0 && plan.IsRows(part.Kind) {
			nodes = up.nodes
		}
		at := int64(0)
		for k := range nodes {
			from, want, held := nodes[k].part(part.Layer, part.Kind)
			if held.Packed && !part.Packed {
				pieces = append(pieces, uploadPiece{to: to, from: from, want: want, part: i, layer: part.Layer, object: nodes[k].object, packed: held})
				at = part.Len
				continue
			}
			n := from.Len()
			if n > part.Len-at {
				return nil, fmt.Errorf("%s: part %d of its copy has %d bytes, its nodes more: %w", up.copy.Name(), i, part.Len, tier.ErrInvalid)
			}
			if n > 0 {
				pieces = append(pieces, uploadPiece{to: to.Slice(at, n), from: from, want: want, part: i, layer: part.Layer, object: nodes[k].object})
			}
			at += n
		}
		if at != part.Len {
			return nil, fmt.Errorf("%s: part %d of its copy has %d bytes, its nodes %d: %w", up.copy.Name(), i, part.Len, at, tier.ErrInvalid)
		}
	}
	return pieces, nil
}

// part returns the bytes of a part of a node, the digests of its chunks, and its layout.
func (n *uploadNode) part(layer int, kind profile.PartKind) (gpuipc.Ref, []uint64, *profile.Part) {
	i, ok := n.layout.Index(layer, kind)
	if !ok {
		panic(fmt.Sprintf("hbm: no part %d of layer %d in a node of a copy", kind, layer))
	}
	part := &n.layout.Parts[i]
	return n.share.Slice(part.Off, part.Len), n.digests[n.layout.FirstChunk[i]:n.layout.FirstChunk[i+1]], part
}

// move copies a piece and compares the digests of the destination, as the device reads it,
// with the published digests.
func (up *upload) move(ctx context.Context, p *uploadPiece) error {
	what := fmt.Sprintf("%s: promote layer %d", up.copy.Name(), p.layer)
	if p.packed != nil {
		if err := up.unpack(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	got := make([]uint64, len(p.want))
	if err := up.cache.dev.Upload(ctx, p.to, p.from, got); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if i := gpuipc.FirstDifference(got, p.want); i >= 0 {
		up.blame(ctx, p)
		return fmt.Errorf("%s: chunk %d has digest %016x in HBM, it was published with %016x: %w", what, i, got[i], p.want[i], tier.ErrCorrupt)
	}
	return nil
}

// unpack is move for rows that are packed in memory. It stores them unpacked, since the
// GPU kernels read plain rows.
func (up *upload) unpack(ctx context.Context, p *uploadPiece) error {
	packed := make([]byte, p.from.Len())
	if err := up.cache.o.Memory.Load(ctx, packed, p.from); err != nil {
		return err
	}
	if got := gpuipc.AppendDigests(nil, packed); gpuipc.FirstDifference(got, p.want) >= 0 {
		up.corrupt.Store(p.object)
		return fmt.Errorf("packed rows have other digests than they were published with: %w", tier.ErrCorrupt)
	}
	s := p.packed.Shape
	rows, err := gpuipc.UnpackRows(packed, gpuipc.DType(p.packed.DType), s[0], s[1], s[2])
	if err != nil {
		up.corrupt.Store(p.object)
		return fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	want := gpuipc.AppendDigests(nil, rows)
	got := make([]uint64, len(want))
	if err := up.cache.dev.Store(ctx, p.to, rows); err != nil {
		return err
	}
	if err := up.cache.dev.Digests(ctx, p.to, got); err != nil {
		return err
	}
	if i := gpuipc.FirstDifference(got, want); i >= 0 {
		return fmt.Errorf("chunk %d of unpacked rows has digest %016x in HBM, want %016x: %w", i, got[i], want[i], tier.ErrCorrupt)
	}
	up.plain[p.part] = want
	return nil
}

// blame checks, after wrong bytes in HBM, whether the bytes in memory are wrong too. If
// so, it records the object as corrupt.
func (up *upload) blame(ctx context.Context, p *uploadPiece) {
	got := make([]uint64, len(p.want))
	if err := up.cache.o.Memory.Digests(ctx, p.from, got); err == nil && gpuipc.FirstDifference(got, p.want) >= 0 {
		up.corrupt.Store(p.object)
	}
}

// hash computes the digests that leases of the copy report. A part that was joined from
// several nodes is divided into other chunks than the parts of these nodes. The digests of
// its chunks are computed in HBM, after its pieces were verified.
func (up *upload) hash(ctx context.Context) error {
	if len(up.nodes) == 1 && up.copy.Packed == up.nodes[0].object.Packed {
		up.digests = up.from
		return nil
	}
	last, l := &up.nodes[len(up.nodes)-1], up.copy.Layout()
	up.digests = make([]uint64, l.Chunks())
	for i := range l.Parts {
		part := &l.Parts[i]
		into := up.digests[l.FirstChunk[i]:l.FirstChunk[i+1]]
		if plain := up.plain[i]; plain != nil {
			copy(into, plain)
			continue
		}
		if len(up.nodes) == 1 || !plan.IsRows(part.Kind) {
			_, digests, _ := last.part(part.Layer, part.Kind)
			copy(into, digests)
			continue
		}
		if err := up.cache.dev.Digests(ctx, up.to.Slice(part.Off, part.Len), into); err != nil {
			return fmt.Errorf("%s: hash layer %d: %w", up.copy.Name(), part.Layer, err)
		}
	}
	return nil
}

// publish sets the digests of the copy.
func (up *upload) publish() { up.copy.Shares[up.rank].Digests = up.digests }
