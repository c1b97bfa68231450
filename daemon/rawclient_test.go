package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// rawClient speaks the protocol frame by frame, so that tests can say what a
// good client never would.
type rawClient struct {
	t       testing.TB
	conn    *seqpacket.Conn
	hello   wire.HelloReply
	tenant  uint32
	profile uint32
	last    uint64
	waiting map[uint64][]byte // replies that came while another was awaited

	arena, slots, staging *gpuipc.Mapping
	closed                bool
}

func dialRaw(t testing.TB, path string) *rawClient {
	t.Helper()
	conn, err := seqpacket.Dial(path, patience)
	must(t, err)
	must(t, conn.SetRecvTimeout(time.Second))
	c := &rawClient{t: t, conn: conn, waiting: map[uint64][]byte{}}
	t.Cleanup(c.close)
	return c
}

// listens waits until a daemon, of another process, takes connections: its socket is there
// somewhat earlier.
func listens(t testing.TB, path string) {
	t.Helper()
	eventually(t, "the daemon listens", func() bool {
		conn, err := seqpacket.Dial(path, patience)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
}

// attach dials and says hello for one tenant.
func attach(t testing.TB, path string, tenants ...wire.TenantName) *rawClient {
	t.Helper()
	return attachWith(t, path, 0, tenants...)
}

// attachWith is attach for a client that has these features.
func attachWith(t testing.TB, path string, features uint64, tenants ...wire.TenantName) *rawClient {
	t.Helper()
	c := dialRaw(t, path)
	if len(tenants) == 0 {
		tenants = []wire.TenantName{{}}
	}
	c.mapAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Client: "raw", Features: features, Tenants: tenants}))
	return c
}

// rubbish sends what is no frame, which ends the connection, and reads the refusal.
func (c *rawClient) rubbish() {
	c.t.Helper()
	if err := c.conn.Send([]byte("rubbish"), nil); err != nil {
		c.t.Fatal(err)
	}
	if h, _, _, err := c.receive(); err != nil || h.Code != wire.Invalid {
		c.t.Fatalf("rubbish was answered %v, %v", h.Code, err)
	}
}

// told is what a match was answered, for messages.
func told(m *wire.MatchReply) string {
	return fmt.Sprintf("a prefix of %d tokens in tier %d (reason %d); segments of status %d in tiers %d for reasons %d, of %d tokens",
		m.PrefixTokens, m.PrefixTier, m.PrefixReason, m.Status, m.Tier, m.Reason, m.Tokens)
}

// mapAll maps the regions that came with hello.
func (c *rawClient) mapAll(fds []int) {
	c.t.Helper()
	c.tenant = c.hello.Tenants[0].ID
	for i, m := range []**gpuipc.Mapping{&c.arena, &c.slots, &c.staging} {
		bytes := []uint64{c.hello.ArenaBytes, c.hello.SlotBytes, c.hello.StagingBytes}[i]
		var err error
		*m, err = gpuipc.Map(gpuipc.Handle{File: os.NewFile(uintptr(fds[i]), "region"), Bytes: int64(bytes)}, i == 2)
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *rawClient) mustHello(m *wire.HelloRequest) []int {
	c.t.Helper()
	body, fds, code := c.exchange(wire.OpHello, m, nil)
	if code != wire.OK {
		c.t.Fatalf("hello: %v: %s", code, wire.ErrorText(body))
	}
	if err := c.hello.Decode(body); err != nil {
		c.t.Fatal(err)
	}
	if len(fds) != wire.HelloDescriptors {
		c.t.Fatalf("%d descriptors with hello", len(fds))
	}
	return fds
}

func (c *rawClient) close() {
	if c.closed {
		return
	}
	c.closed = true
	c.conn.Close()
	for _, m := range []*gpuipc.Mapping{c.arena, c.slots, c.staging} {
		if m != nil {
			m.Close()
		}
	}
}

// header is that of the next request.
func (c *rawClient) header(op wire.Op) wire.Header {
	c.last++
	h := wire.Header{Op: op, Request: c.last, Epoch: c.hello.BootEpoch, Tenant: c.tenant}
	if op == wire.OpHello {
		h.Epoch, h.Tenant = 0, 0
	}
	return h
}

// send sends a request and returns its id.
func (c *rawClient) send(op wire.Op, m wire.Message, fds ...int) uint64 {
	c.t.Helper()
	h := c.header(op)
	c.sendHeader(&h, m, fds...)
	return h.Request
}

func (c *rawClient) sendHeader(h *wire.Header, m wire.Message, fds ...int) {
	c.t.Helper()
	frame, err := wire.AppendFrame(nil, h, m)
	if err == nil {
		err = c.conn.Send(frame, fds)
	}
	if err != nil {
		c.t.Fatalf("send %v: %v", h.Op, err)
	}
}

// receive returns the next frame; io errors as they are.
func (c *rawClient) receive() (wire.Header, []byte, []int, error) {
	buf := make([]byte, wire.MaxFrame)
	limit := time.Now().Add(patience)
	for {
		n, fds, err := c.conn.Recv(buf)
		if errors.Is(err, seqpacket.ErrTimeout) && time.Now().Before(limit) {
			continue
		}
		if err != nil {
			return wire.Header{}, nil, nil, err
		}
		h, body, err := wire.ParseHeader(buf[:n])
		return h, body, fds, err
	}
}

// await returns the reply of one request; others are kept.
func (c *rawClient) await(request uint64) (wire.Code, []byte, []int) {
	c.t.Helper()
	for {
		if frame, ok := c.waiting[request]; ok {
			delete(c.waiting, request)
			h, body, _ := wire.ParseHeader(frame)
			return h.Code, body, nil
		}
		h, body, fds, err := c.receive()
		if err != nil {
			c.t.Fatalf("await reply %d: %v", request, err)
		}
		if h.Kind != wire.Reply {
			c.t.Fatalf("reply of kind %d", h.Kind)
		}
		if h.Request == request {
			return h.Code, body, fds
		}
		frame := wire.AppendHeader(nil, &h)
		c.waiting[h.Request] = append(frame, body...)
	}
}

func (c *rawClient) exchange(op wire.Op, m wire.Message, reply wire.Message, fds ...int) ([]byte, []int, wire.Code) {
	c.t.Helper()
	code, body, got := c.await(c.send(op, m, fds...))
	if code == wire.OK && reply != nil {
		if err := reply.Decode(body); err != nil {
			c.t.Fatalf("%v: %v", op, err)
		}
	}
	return body, got, code
}

// call exchanges and expects OK.
func (c *rawClient) call(op wire.Op, m, reply wire.Message, fds ...int) {
	c.t.Helper()
	if body, _, code := c.exchange(op, m, reply, fds...); code != wire.OK {
		c.t.Fatalf("%v: %v: %s", op, code, wire.ErrorText(body))
	}
}

// refused exchanges and expects a code, with a text that has part in it.
func (c *rawClient) refused(op wire.Op, m wire.Message, want wire.Code, part string) {
	c.t.Helper()
	body, _, code := c.exchange(op, m, nil)
	if text := wire.ErrorText(body); code != want || !strings.Contains(text, part) {
		c.t.Errorf("%v: %v %q, want %v and a text with %q", op, code, text, want, part)
	}
}

// profileRequest is what an engine of p says.
func profileRequest(p *profile.Profile) *wire.ProfileRequest {
	return &wire.ProfileRequest{
		Identity: p.Canonical(), BlockTokens: 16, Connector: "raw", Engine: "test", ProbeTokens: 100,
		SegmentBytes: uint64(p.SegmentLayout(100).Bytes), CheckpointBytes: uint64(p.CheckpointLayout(100).Bytes),
	}
}

func (c *rawClient) register(p *profile.Profile) {
	c.t.Helper()
	var r wire.ProfileReply
	c.call(wire.OpProfile, profileRequest(p), &r)
	if r.Fingerprint != p.Fingerprint() {
		c.t.Fatal("another fingerprint")
	}
	c.profile = r.Profile
}

// document is a segment with made-up contents.
type document struct {
	p      *profile.Profile
	spec   profile.SegmentSpec
	tokens []uint32
	key    profile.SegmentKey
	layout profile.Layout
	bytes  []byte // of rank 0, by the layout; zero in the padding
}

func newDocument(p *profile.Profile, salt []byte, seed uint64, n int, role profile.Role) *document {
	rng := rand.New(rand.NewPCG(seed, 1))
	d := &document{p: p, spec: profile.FirstSpec(n)}
	if role == profile.RoleMid {
		d.spec, _ = p.MidSpec(n, 4)
	}
	for range n {
		d.tokens = append(d.tokens, rng.Uint32N(256))
	}
	d.key = p.SegmentKey(salt, d.spec, d.tokens)
	_, interior := d.spec.Interior()
	d.layout = p.SegmentLayout(interior)
	d.bytes = fill(d.layout, rng)
	return d
}

// fill makes the bytes of a layout: small numbers that no arithmetic on any
// dtype turns into NaN.
func fill(l profile.Layout, rng *rand.Rand) []byte {
	b := make([]byte, l.Bytes)
	for _, p := range l.Parts {
		size := int64(p.DType.Size())
		for at := p.Off; at < p.Off+p.Len; at += size {
			// The sign, exponent and top of the fraction of a number around 1/4.
			b[at+size-1], b[at+size-2] = 0x3e, byte(rng.Uint32())
			if p.DType == profile.F16 {
				b[at+1] = 0x34
			}
		}
	}
	return b
}

// stage writes bytes into staging.
func (c *rawClient) stage(off int, b []byte) { copy(c.staging.Bytes()[off:], b) }

// tokensAt is where tests keep token ids in staging; tensors begin at 0.
const tokensAt = 1 << 20

func (c *rawClient) reserveRequest(d *document, rank uint32) *wire.ReserveRequest {
	for i, id := range d.tokens {
		c.stage(tokensAt+4*i, []byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
	}
	return &wire.ReserveRequest{
		Profile: c.profile, Rank: rank, Keys: [][32]byte{d.key}, Roles: []uint8{uint8(d.spec.Role)},
		Heads: []uint32{uint32(d.spec.Head)}, Tails: []uint32{uint32(d.spec.Tail)},
		Tokens: []uint32{uint32(d.spec.Tokens)}, TokenOff: []uint64{tokensAt},
	}
}

func (c *rawClient) reserve(d *document, rank uint32) (uint64, wire.Code) {
	c.t.Helper()
	var r wire.ReserveReply
	c.call(wire.OpReserve, c.reserveRequest(d, rank), &r)
	return r.Reservations[0], wire.Code(r.Codes[0])
}

// commitRequest stages all parts and names all their chunks.
func (c *rawClient) commitRequest(reservation uint64, layout profile.Layout, bytes []byte) *wire.CommitRequest {
	c.stage(0, bytes)
	m := &wire.CommitRequest{}
	for i, p := range layout.Parts {
		m.Reservations = append(m.Reservations, reservation)
		m.Parts = append(m.Parts, uint32(i))
		m.ChunkFirst = append(m.ChunkFirst, 0)
		m.ChunkCount = append(m.ChunkCount, uint32(gpuipc.Chunks(p.Len)))
		m.StagingOff = append(m.StagingOff, uint64(p.Off))
		m.Digest = gpuipc.AppendDigests(m.Digest, bytes[p.Off:p.Off+p.Len])
	}
	return m
}

// commit expects every row to be OK and says whether it published.
func (c *rawClient) commit(reservation uint64, layout profile.Layout, bytes []byte) bool {
	c.t.Helper()
	var r wire.CommitReply
	c.call(wire.OpCommit, c.commitRequest(reservation, layout, bytes), &r)
	for i, code := range r.Codes {
		if wire.Code(code) != wire.OK {
			c.t.Fatalf("commit row %d: %v", i, wire.Code(code))
		}
	}
	return r.Published[len(r.Published)-1] == 1
}

func (c *rawClient) publish(d *document) {
	c.t.Helper()
	id, code := c.reserve(d, 0)
	if code != wire.OK {
		c.t.Fatalf("reserve: %v", code)
	}
	if !c.commit(id, d.layout, d.bytes) {
		c.t.Fatal("not published")
	}
}

func (c *rawClient) match(keys ...[32]byte) *wire.MatchReply {
	c.t.Helper()
	var r wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Keys: keys}, &r)
	return &r
}

func (c *rawClient) acquire(rank uint32, keys ...[32]byte) *wire.AcquireReply {
	c.t.Helper()
	var r wire.AcquireReply
	c.call(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Rank: rank, Digests: 1, Keys: keys}, &r)
	return &r
}

// lease acquires one segment that must be there and checks its bytes.
func (c *rawClient) lease(d *document) uint64 {
	c.t.Helper()
	r := c.acquire(0, d.key)
	if wire.Code(r.Codes[0]) != wire.OK {
		c.t.Fatalf("acquire: %v", wire.Code(r.Codes[0]))
	}
	var got []byte
	for i := range r.ExtentOff {
		got = append(got, c.arena.Bytes()[r.ExtentOff[i]:][:r.ExtentLen[i]]...)
	}
	for i, p := range d.layout.Parts {
		if !bytes.Equal(got[p.Off:p.Off+p.Len], d.bytes[p.Off:p.Off+p.Len]) {
			c.t.Fatalf("part %d differs from what was committed", i)
		}
	}
	return r.Leases[0]
}

func (c *rawClient) release(leases ...uint64) []uint16 {
	c.t.Helper()
	var r wire.CodesReply
	c.call(wire.OpRelease, &wire.ReleaseRequest{Leases: leases}, &r)
	return r.Codes
}

// onePlan is one segment at the front of a prompt and n recomputed tokens.
func onePlan(lease uint64, d *document, n uint32) wire.Plan {
	begin, count := d.spec.Interior()
	p := wire.Plan{Begin: 0}
	add := func(kind uint8, lease uint64, start, count uint32) {
		p.Kinds, p.Leases = append(p.Kinds, kind), append(p.Leases, lease)
		p.Starts, p.Counts = append(p.Starts, start), append(p.Counts, count)
		p.Inputs = append(p.Inputs, wire.None)
		p.End = start + count
	}
	if begin != 0 {
		panic(fmt.Sprintf("a first segment begins at 0, not %d", begin))
	}
	add(wire.SpanSegment, lease, 0, uint32(count))
	add(wire.SpanRecompute, 0, uint32(count), n)
	return p
}
