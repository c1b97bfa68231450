package peer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/policy/coding"
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

func (n *name) fields(c *coding.Cursor) {
	c.Raw(n.fingerprint[:])
	c.Raw(n.tenant[:])
	coding.U8(c, &n.Kind)
	c.Raw(n.Key[:])
	coding.U8(c, &n.base.Kind)
	c.Raw(n.base.Key[:])
}

// read names the message in the error of reading it.
func read(what string, c *coding.Cursor) error {
	if err := c.End(); err != nil {
		return fmt.Errorf("peer: %s: %w: %w", what, err, tier.ErrInvalid)
	}
	return nil
}

func appendFind(b []byte, names []name) []byte {
	c := coding.Writer(slices.Grow(b, 2+len(names)*nameBytes))
	c.Len(len(names), 2, nameBytes, maxNames)
	for i := range names {
		names[i].fields(&c)
	}
	return c.Bytes()
}

func decodeFind(b []byte) (names []name, err error) {
	c := coding.Reader(b)
	if coding.List(&c, &names, 2, nameBytes, maxNames); len(names) == 0 {
		c.Fail("no names")
	}
	for i := range names {
		names[i].fields(&c)
	}
	return names, read("find", &c)
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

func (d *description) fields(c *coding.Cursor) {
	coding.U8(c, &d.Kind)
	c.Raw(d.Key[:])
	role := d.spec.Role
	if d.primer() != nil {
		role |= primedRole
	}
	coding.U8(c, &role)
	coding.U32(c, &d.spec.Tokens, &d.spec.Head, &d.spec.Tail, &d.begin, &d.end)
	coding.U8(c, &d.parent.Kind)
	c.Raw(d.parent.Key[:])
	ranks := len(d.digests)
	coding.U16(c, &ranks)
	coding.U64(c, &d.rankBytes)
	coding.Text(c, &d.publisher, 2, maxPublisher)
	c.U32s(&d.tokens, math.MaxInt32)
	if c.Reading() {
		if ranks == 0 || ranks > maxRanks {
			c.Fail("%d ranks", ranks)
			return
		}
		d.spec.Role, d.rankBytes = role&^primedRole, d.rankBytes&math.MaxInt64
	}
	c.Rows(&d.digests, ranks)
	if role&primedRole != 0 {
		if c.Raw(d.spec.Primer[:]); d.primer() == nil {
			c.Fail("a segment with a primer of zeros")
		}
	}
	coding.Rest(c, &d.packed, profile.MaxPackedBytes)
}

func (d *description) append(b []byte) []byte {
	c := coding.Writer(slices.Grow(b, d.size()))
	d.fields(&c)
	return c.Bytes()
}

func decodeDescription(b []byte) (*description, error) {
	c, d := coding.Reader(b), &description{}
	d.fields(&c)
	return d, read("description", &c)
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
	return d.append(binary.LittleEndian.AppendUint32(b, uint32(d.size())))
}

// decodeAnswer decodes an answer that must have count rows. Descriptions are slices of b.
func decodeAnswer(b []byte, count int) ([]row, error) {
	c, rows := coding.Reader(b), make([]row, count)
	if n := c.Len(0, 2, 1, count); n != count {
		c.Fail("%d rows for %d names", n, count)
	}
	for i := range rows {
		r := &rows[i]
		if coding.U8(&c, &r.status); r.status >= statuses {
			c.Fail("row of status %d", r.status)
		} else if r.status == here {
			r.description = c.Take(c.Len(0, 4, 1, maxAnswer))
		}
	}
	return rows, read("answer", &c)
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

func (q *readRequest) fields(c *coding.Cursor) {
	q.name.fields(c)
	c.Raw(q.pin[:])
	coding.U16(c, &q.rank)
	if coding.U64(c, &q.off, &q.n); q.off < 0 || q.n <= 0 || q.n > maxRange {
		c.Fail("%d bytes at %d, at most %d at once", q.n, q.off, maxRange)
	}
}

func (q *readRequest) append(b []byte) []byte {
	c := coding.Writer(slices.Grow(b, readBytes))
	q.fields(&c)
	return c.Bytes()
}

func decodeRead(b []byte) (q readRequest, err error) {
	c := coding.Reader(b)
	q.fields(&c)
	return q, read("read", &c)
}
