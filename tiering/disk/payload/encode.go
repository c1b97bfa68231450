package payload

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Encoder encodes objects for the disk.
type Encoder struct {
	device  gpuipc.Device
	coded   [profile.PartV + 1]bool
	any     bool    // at least one kind of part is coded
	staging *budget // bytes of coded payloads in memory
}

// NewEncoder returns an encoder that compresses the kinds of parts in coded. Concurrent
// calls together use at most stagingBytes of memory, unless a single object needs more.
func NewEncoder(device gpuipc.Device, coded []profile.PartKind, stagingBytes int64) *Encoder {
	enc := &Encoder{device: device, any: len(coded) > 0, staging: newBudget(stagingBytes)}
	for _, kind := range coded {
		enc.coded[kind] = true
	}
	return enc
}

// HeaderBound returns an upper bound of the bytes of an object's header. It is called when
// room is counted, under a lock that must not be held long enough to build the manifest.
func (enc *Encoder) HeaderBound(o *tier.Object, tenant string) int64 {
	const fixed = 512 // all fields of known length
	n := int64(fixed + len(tenant) + len(o.Publisher) + len(o.Packed) + 4*len(o.Tokens))
	for i := range o.Shares {
		n += 8 * int64(len(o.Shares[i].Digests))
	}
	if enc.any {
		// Each part adds its codec and length to the manifest. Each chunk adds its stored
		// length, and each MiB adds a digest.
		for i := range o.Shares {
			n += codedPartBytes*int64(len(o.Shares[i].Digests)) + 8*int64(extent.Chunks(o.Shares[i].Ref.Len())+1)
		}
	}
	n += n/128 + 64 // a zstd frame that does not compress
	return int64(extent.HeaderBytes(int(n)))
}

// codedPartBytes is twice the size that a part with one chunk adds to a manifest. Further
// chunks add less. The factor 2 covers parts without bytes, which have no digest to be
// counted by.
const codedPartBytes = 2 * (1 + 8 + 4 + 4)

// Encoded is the payload of an object and its manifest.
type Encoded struct {
	Manifest []byte // as stored
	Bytes    int64  // size of the payload
	Coded    bool
	Buffers  [][]byte
	Release  func() // releases the memory of Buffers
	Tags     []byte // tags of all chunks, for the seal

	// Sizes of the coded parts before and after coding.
	RawBytes, CodedBytes uint64
}

// Encode prepares the bytes of an object for writing: in place, or coded in new memory.
// tier.ErrUnavailable means that the device failed, and tier.ErrInvalid that the object is
// invalid.
func (enc *Encoder) Encode(ctx context.Context, o *tier.Object, tenant string, key *extent.Key) (*Encoded, error) {
	m := manifestOf(o, tenant)
	layout, err := o.Layout()
	if err != nil {
		return nil, fmt.Errorf("%x: %w: %w", o.Key[:8], err, tier.ErrInvalid)
	}
	var e *Encoded
	if enc.any {
		e, err = enc.encode(ctx, o, m, &layout, key)
	} else {
		e, err = enc.inPlace(ctx, o, &layout, key)
	}
	if err != nil {
		return nil, err
	}
	e.Bytes = m.PayloadBytes()
	if e.Manifest, err = m.Encode(nil); err != nil {
		e.Release()
		return nil, fmt.Errorf("%x: %w: %w", o.Key[:8], err, tier.ErrInvalid)
	}
	return e, nil
}

func manifestOf(o *tier.Object, tenant string) *extent.Manifest {
	m := &extent.Manifest{
		Fingerprint: o.Profile.Fingerprint(), Tenant: tenant, Publisher: o.Publisher, Created: o.Created.UnixNano(),
		Spec: o.Spec, Begin: o.Begin, End: o.End, Parent: extent.Name{Kind: uint8(o.Parent.Kind), Key: o.Parent.Key}, Tokens: o.Tokens,
		Packed: o.Packed, RankBytes: o.Shares[0].Ref.Len(), Digests: make([][]uint64, len(o.Shares)),
	}
	for i := range o.Shares {
		m.Digests[i] = o.Shares[i].Digests
	}
	return m
}

// inPlace uses the bytes as they are in memory, rank after rank.
func (enc *Encoder) inPlace(ctx context.Context, o *tier.Object, layout *profile.Layout, key *extent.Key) (*Encoded, error) {
	e := &Encoded{}
	views := make([]*view, 0, len(o.Shares))
	e.Release = func() {
		for _, v := range views {
			v.close()
		}
	}
	for i := range o.Shares {
		v, err := openView(ctx, enc.device, o.Shares[i].Ref, false)
		if v != nil {
			views = append(views, v)
		}
		if err != nil {
			e.Release()
			return nil, tier.Unavailable(fmt.Errorf("rank %d of %x: %w", i, o.Key[:8], err))
		}
		e.Buffers = append(e.Buffers, buffers(v.pieces)...)
		e.Tags = v.tags(e.Tags, layout, key)
	}
	return e, nil
}

// tags appends the tags of a rank's chunks, in the order of their digests.
func (v *view) tags(dst []byte, l *profile.Layout, key *extent.Key) []byte {
	for _, c := range chunksOf(l, 1) {
		dst = key.Tag(dst, v.window(c.off, c.n))
	}
	return dst
}

// codedMargin is extra room in the output buffer: a part that does not shrink may take
// more than its raw bytes, because of chunk tables, before it is stored unchanged instead.
const codedMargin = 64 << 10

// encoding builds a coded payload in memory, because the header, which comes first, needs
// its length. Encoder.staging limits the memory of concurrent encodings.
type encoding struct {
	*Encoder
	key     *extent.Key
	tags    []byte // tags of the chunks so far
	out     []byte // so far
	scratch []byte
	raw     uint64 // of coded parts
	stored  uint64 // of the same parts
}

func (enc *Encoder) encode(ctx context.Context, o *tier.Object, m *extent.Manifest, layout *profile.Layout, key *extent.Key) (*Encoded, error) {
	ranks := len(o.Shares)
	took := enc.staging.take(int64(ranks) * m.RankBytes)
	margin := int64(codedMargin + 64*len(chunksOf(layout, ranks)))
	w := &encoding{
		Encoder: enc,
		key:     key,
		out:     slab.AlignedBuffer(int(blocks(extent.PayloadBytes(ranks, m.RankBytes) + margin)))[:0],
		scratch: make([]byte, 0, extent.ChunkBytes),
	}
	m.Coded, m.Parts = true, make([][]extent.Part, ranks)
	for i := range o.Shares {
		var err error
		if m.Parts[i], err = w.rank(ctx, o.Shares[i].Ref, layout); err != nil {
			enc.staging.give(took)
			return nil, tier.Unavailable(fmt.Errorf("rank %d of %x: %w", i, o.Key[:8], err))
		}
	}
	n := len(w.out)
	payload := w.out[:blocks(int64(n))]
	clear(payload[n:])
	for at := 0; at < len(payload); at += extent.ChunkBytes {
		m.StoredDigests = append(m.StoredDigests, gpuipc.DigestBytes(payload[at:min(at+extent.ChunkBytes, len(payload))]))
	}
	e := &Encoded{Coded: true, Tags: w.tags, Release: func() { enc.staging.give(took) }, RawBytes: w.raw, CodedBytes: w.stored}
	if len(payload) > 0 {
		e.Buffers = [][]byte{payload}
	}
	return e, nil
}

// rank adds the parts of one rank.
func (w *encoding) rank(ctx context.Context, ref gpuipc.Ref, l *profile.Layout) ([]extent.Part, error) {
	v, err := openView(ctx, w.device, ref, false)
	if v != nil {
		defer v.close()
	}
	if err != nil {
		return nil, err
	}
	w.tags = v.tags(w.tags, l, w.key)
	parts := make([]extent.Part, len(l.Parts))
	for i := range l.Parts {
		p := &l.Parts[i]
		parts[i] = extent.Part{Bytes: p.Len}
		if w.coded[p.Kind] && p.Len > 0 && !p.Packed {
			ok, err := w.part(v, p, &parts[i])
			if err != nil {
				return nil, err
			}
			if ok {
				continue
			}
		}
		for _, run := range v.window(p.Off, p.Len) {
			w.out = append(w.out, run...)
		}
	}
	return parts, nil
}

// part appends a coded part to the payload. Each chunk is a separate stream, so that a
// reader can decode the bytes of each digest independently. If the part does not shrink,
// it appends nothing and returns false.
func (w *encoding) part(v *view, p *profile.Part, out *extent.Part) (ok bool, err error) {
	start := len(w.out)
	for at := int64(0); at < p.Len; at += extent.ChunkBytes {
		n := min(extent.ChunkBytes, p.Len-at)
		before := len(w.out)
		raw := gather(v.window(p.Off+at, n), w.scratch)
		w.out, err = codec.Encode(w.out, raw, kernel.DType(p.DType), codec.Options{Workers: runtime.GOMAXPROCS(0)})
		if err != nil {
			return false, err
		}
		out.Chunks = append(out.Chunks, uint32(len(w.out)-before))
	}
	if stored := int64(len(w.out) - start); stored < p.Len {
		out.Codec = uint8(codec.Planes)
		w.raw += uint64(p.Len)
		w.stored += uint64(stored)
		return true, nil
	}
	w.out, out.Chunks = w.out[:start], nil
	return false, nil
}
