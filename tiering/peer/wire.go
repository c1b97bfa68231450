package peer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Paths of the requests.
const (
	FindPath    = "/peer/v1/find"
	ReadPath    = "/peer/v1/read"
	HoldersPath = "/peer/v1/holders"
)

// Messages, little-endian:
//
//	name         fingerprint 32 | tenant 16 | kind u8 | key 32 | base's kind u8 | base's key 32
//	find         count u16 | names
//	answer       count u16 | rows: status u8 | if here: length u32 | description
//	description  kind u8 | key 32 | role u8 | tokens u32 | head u32 | tail u32 | begin u32 | end u32
//	             | parent's kind u8 | parent's key 32 | ranks u16 | bytes of a rank u64
//	             | publisher: length u16, bytes | token ids: count u32, each u32
//	             | digests of a rank: count u32, each u64, rank by rank
//	             | if the segment has a primer: its id 32
//	             | if the segment has packed parts: their layout, to the end
//	read         name | pin 16 | rank u16 | offset u64 | length u64
//
// A segment with a primer has bit 7 of its role set, so that nodes without support for
// primers refuse it.
//
// A segment has at most profile.MaxTokens ids. If an answer would exceed maxAnswer bytes,
// rows that do not fit get the status "later" (the constant later).
const (
	namedBytes   = 32 + 16 + 1 + 32 // a name without the base
	nameBytes    = namedBytes + 1 + 32
	readBytes    = nameBytes + 16 + 2 + 8 + 8
	maxNames     = 256
	maxFind      = 2 + maxNames*nameBytes
	maxAnswer    = 16 << 20
	maxRanks     = 1024
	maxPublisher = 256
	maxRange     = 16 << 20
	primedRole   = 1 << 7
)

// name identifies an object between nodes.
type name struct {
	tier.Name
	fingerprint profile.Fingerprint
	tenant      tenantTag
	base        tier.Name // of a checkpoint: one that the client has, so that only the rows after it are sent; zero = none
}

// putNamed writes a name without its base, which takes namedBytes.
func putNamed(b []byte, n *name) {
	copy(b, n.fingerprint[:])
	copy(b[32:], n.tenant[:])
	b[48] = byte(n.Kind)
	copy(b[49:namedBytes], n.Key[:])
}

func appendName(b []byte, n *name) []byte {
	b = append(b, make([]byte, namedBytes)...)
	putNamed(b[len(b)-namedBytes:], n)
	return append(append(b, byte(n.base.Kind)), n.base.Key[:]...)
}

func appendFind(b []byte, names []name) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(names)))
	for i := range names {
		b = appendName(b, &names[i])
	}
	return b
}

func decodeFind(b []byte) ([]name, error) {
	r := reader{b: b}
	n := int(r.u16())
	if n == 0 || n > maxNames || len(r.b) != n*nameBytes {
		return nil, fmt.Errorf("peer: %d names in %d bytes, at most %d: %w", n, len(b), maxNames, tier.ErrInvalid)
	}
	names := make([]name, n)
	for i := range names {
		names[i] = r.name()
	}
	return names, r.end("find")
}

// status is the status of a row of an answer.
type status uint8

const (
	notHere  status = 0
	here     status = 1
	later    status = 2 // on its way into memory, or the answer has no room: the client asks again
	statuses status = 3
)

// description is a source's description of an object. Decoding copies all bytes.
type description struct {
	tier.Name
	spec       profile.SegmentSpec
	begin, end int
	parent     tier.Name
	rankBytes  int64
	publisher  string
	tokens     []uint32
	digests    [][]uint64 // by rank; at least one rank, the same number each
	packed     profile.Packed
}

// describe returns the description of an object of a store.
func describe(o *tier.Object) *description {
	d := &description{
		Name: tier.Name{Kind: o.Kind, Key: o.Key}, spec: o.Spec, begin: o.Begin, end: o.End, parent: o.Parent,
		rankBytes: o.Shares[0].Ref.Len(), publisher: o.Publisher[:min(len(o.Publisher), maxPublisher)], tokens: o.Tokens, packed: o.Packed,
	}
	for i := range o.Shares {
		d.digests = append(d.digests, o.Shares[i].Digests)
	}
	return d
}

// size returns the encoded size of the description.
func (d *description) size() int {
	return 33 + 13 + 8 + 33 + 2 + 8 + 2 + len(d.publisher) + 4 + 4*len(d.tokens) + 4 + 8*len(d.digests)*len(d.digests[0]) + len(d.primer()) + len(d.packed)
}

// primer returns the id of the segment's primer; nil = none.
func (d *description) primer() []byte {
	if d.spec.Primer == (profile.PrimerID{}) {
		return nil
	}
	return d.spec.Primer[:]
}

func (d *description) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(append(b, byte(d.Kind)), d.Key[:]...)
	role := byte(d.spec.Role)
	if d.primer() != nil {
		role |= primedRole
	}
	b = append(b, role)
	for _, n := range [...]int{d.spec.Tokens, d.spec.Head, d.spec.Tail, d.begin, d.end} {
		b = le.AppendUint32(b, uint32(n))
	}
	b = append(append(b, byte(d.parent.Kind)), d.parent.Key[:]...)
	b = le.AppendUint16(b, uint16(len(d.digests)))
	b = le.AppendUint64(b, uint64(d.rankBytes))
	b = append(le.AppendUint16(b, uint16(len(d.publisher))), d.publisher...)
	b = le.AppendUint32(b, uint32(len(d.tokens)))
	for _, id := range d.tokens {
		b = le.AppendUint32(b, id)
	}
	b = le.AppendUint32(b, uint32(len(d.digests[0])))
	for _, rank := range d.digests {
		for _, x := range rank {
			b = le.AppendUint64(b, x)
		}
	}
	return append(append(b, d.primer()...), d.packed...)
}

func decodeDescription(b []byte) (*description, error) {
	r := reader{b: b}
	d := &description{}
	d.Kind, d.Key = tier.CheckpointKind(r.u8()), r.key()
	role := r.u8()
	d.spec.Role = profile.Role(role &^ primedRole)
	for _, n := range [...]*int{&d.spec.Tokens, &d.spec.Head, &d.spec.Tail, &d.begin, &d.end} {
		*n = int(r.u32())
	}
	d.parent.Kind, d.parent.Key = tier.CheckpointKind(r.u8()), r.key()
	ranks := int(r.u16())
	d.rankBytes = int64(r.u64() &^ (1 << 63))
	d.publisher = string(r.take(min(int(r.u16()), maxPublisher+1)))
	d.tokens = make([]uint32, r.count(4))
	for i := range d.tokens {
		d.tokens[i] = r.u32()
	}
	if ranks == 0 || ranks > maxRanks || len(d.publisher) > maxPublisher {
		return nil, fmt.Errorf("peer: description of %d ranks: %w", ranks, tier.ErrInvalid)
	}
	per := r.count(8 * ranks)
	d.digests = make([][]uint64, ranks)
	for i := range d.digests {
		d.digests[i] = make([]uint64, per)
		for k := range d.digests[i] {
			d.digests[i][k] = r.u64()
		}
	}
	if role&primedRole != 0 {
		if d.spec.Primer = r.key(); d.primer() == nil {
			return nil, fmt.Errorf("peer: description of a segment with a primer of zeros: %w", tier.ErrInvalid)
		}
	}
	d.packed = profile.Packed(r.take(min(len(r.b), profile.MaxPackedBytes)))
	return d, r.end("description")
}

// row is one row of an answer. description is nil unless the status is here.
type row struct {
	status      status
	description []byte // encoded
}

// appendRow appends a row to an answer. d is only used if s is here.
func appendRow(b []byte, s status, d *description) []byte {
	b = append(b, byte(s))
	if s != here {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(d.size()))
	return d.append(b)
}

// decodeAnswer decodes an answer that must have count rows. Descriptions are slices of b.
func decodeAnswer(b []byte, count int) ([]row, error) {
	r := reader{b: b}
	if n := int(r.u16()); n != count {
		return nil, fmt.Errorf("peer: %d rows for %d names: %w", n, count, tier.ErrInvalid)
	}
	rows := make([]row, count)
	for i := range rows {
		rows[i].status = status(r.u8())
		switch {
		case rows[i].status >= statuses:
			return nil, fmt.Errorf("peer: row of status %d: %w", rows[i].status, tier.ErrInvalid)
		case rows[i].status == here:
			rows[i].description = r.take(r.count(1))
		}
	}
	return rows, r.end("answer")
}

// pin is a hash of everything in a description that a reader relies on: shape and
// digests. A member sends bytes only if its object has the same pin.
type pin [16]byte

// pinOf returns the pin of a description. It leaves out the publisher, and the token ids,
// which the key determines.
func pinOf(d *description) pin {
	shape := *d
	shape.publisher, shape.tokens = "", nil
	sum := sha256.Sum256(shape.append(make([]byte, 0, shape.size())))
	return pin(sum[:len(pin{})])
}

// readRequest asks for bytes [off, off+n) of a rank's share.
type readRequest struct {
	name
	pin    pin
	rank   int
	off, n int64
}

func (q *readRequest) append(b []byte) []byte {
	b = append(appendName(b, &q.name), q.pin[:]...)
	b = binary.LittleEndian.AppendUint16(b, uint16(q.rank))
	b = binary.LittleEndian.AppendUint64(b, uint64(q.off))
	return binary.LittleEndian.AppendUint64(b, uint64(q.n))
}

func decodeRead(b []byte) (readRequest, error) {
	r := reader{b: b}
	q := readRequest{name: r.name(), pin: pin(r.take(len(pin{})))}
	q.rank, q.off, q.n = int(r.u16()), int64(r.u64()), int64(r.u64())
	if err := r.end("read"); err != nil {
		return q, err
	}
	if q.off < 0 || q.n <= 0 || q.n > maxRange {
		return q, fmt.Errorf("peer: %d bytes at %d, at most %d at once: %w", q.n, q.off, maxRange, tier.ErrInvalid)
	}
	return q, nil
}

// reader decodes a message. If the message ends too early, it returns zeros and sets short.
type reader struct {
	b     []byte
	short bool
}

// take returns the next n bytes. If there are fewer, it returns zeros in a new slice.
func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.short, r.b = true, nil
		if n > nameBytes {
			n = 0 // no field of fixed length is longer, so callers accept fewer bytes
		}
		return make([]byte, n)
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() byte    { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) key() (k [32]byte) {
	copy(k[:], r.take(32))
	return k
}

// text reads bytes prefixed by their length in one byte.
func (r *reader) text() []byte {
	n := int(r.u8())
	if n > len(r.b) {
		r.short, r.b = true, nil
		return nil
	}
	return r.take(n)
}

func (r *reader) name() (n name) {
	n.fingerprint = r.key()
	copy(n.tenant[:], r.take(16))
	n.Kind, n.Key = tier.CheckpointKind(r.u8()), r.key()
	n.base.Kind, n.base.Key = tier.CheckpointKind(r.u8()), r.key()
	return n
}

// The method count reads a number and checks that the message has at least this number of
// further elements, of size bytes each. If it has fewer, count returns 0 and sets the field
// short.
func (r *reader) count(size int) int {
	n := int64(r.u32())
	if n*int64(size) > int64(len(r.b)) {
		r.short, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) end(what string) error {
	if r.short || len(r.b) > 0 {
		return fmt.Errorf("peer: %s is not as long as it says: %w", what, tier.ErrInvalid)
	}
	return nil
}
