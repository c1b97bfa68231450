package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Roles of the processes that visit a daemon in a soak.
const (
	comes  = "come"  // works for a while and ends cleanly
	dies   = "die"   // is killed while it works, and then has leases and unfinished puts
	stalls = "stall" // holds leases and sends requests without reading answers, until it is killed
	lies   = "lie"   // sends invalid frames, and wrong digests
)

// visit is the report that a visitor process writes at its end.
type visit struct {
	Reads    int `json:"reads"`
	Corrupt  int `json:"corrupt"`
	Lies     int `json:"lies"`
	Believed int `json:"believed"` // lies that the daemon accepted
}

const (
	visitSteps   = 150
	visitPause   = 10 * time.Millisecond
	visitTokens  = 400
	visitStaging = 4 << 20
)

// Visit runs a visitor process. args are its role, the socket and a seed.
func Visit(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("a client is started with its role, a socket and a seed, got %q", args)
	}
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	v := visitor{socket: args[1], seed: seed, rng: rand.New(rand.NewPCG(seed, 9))}
	switch args[0] {
	case comes, dies:
		err = v.work(ctx)
	case stalls:
		err = v.stall(ctx)
	case lies:
		err = v.lie()
	default:
		err = fmt.Errorf("no role %q", args[0])
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return json.NewEncoder(out).Encode(&v.visit)
}

type visitor struct {
	visit
	socket string
	seed   uint64
	rng    *rand.Rand
}

// mill returns a mill with its own connection.
func (v *visitor) mill(ctx context.Context) (*mill, error) {
	shapes, err := newShapes()
	if err != nil {
		return nil, err
	}
	c, err := openClient(ctx, v.socket, nil, nil, shapes)
	if err != nil {
		return nil, err
	}
	return newMill(c, shapes, v.seed, visitTokens), nil
}

// work puts segments, keeps some leases, and reads back what it put.
func (v *visitor) work(ctx context.Context) error {
	m, err := v.mill(ctx)
	if err != nil {
		return err
	}
	var kept []*connector.Lease
	for range visitSteps {
		if err := m.step(ctx, nil); err != nil {
			return errors.Join(err, m.client.conn.Close())
		}
		if l := m.keep(ctx); l != nil && len(kept) < 8 {
			kept = append(kept, l)
		} else if l != nil {
			l.Release()
		}
		time.Sleep(visitPause)
	}
	connector.Release(kept...)
	v.Reads, v.Corrupt = m.findings.Read, m.findings.Corrupt
	return m.client.conn.Close()
}

// stall works a little, keeps leases, and sends requests whose answers it does not read. It
// returns only when ctx ends or after an error.
func (v *visitor) stall(ctx context.Context) error {
	m, err := v.mill(ctx)
	if err != nil {
		return err
	}
	for range 20 {
		if err := m.step(ctx, nil); err != nil {
			return err
		}
		m.keep(ctx)
	}
	l, err := v.dial()
	if err != nil {
		return err
	}
	if err := l.conn.SetSendTimeout(time.Second); err != nil {
		return err
	}
	for l.send(wire.OpStats, &wire.StatsRequest{}) == nil { // until the queue is full or the daemon drops the connection
	}
	<-ctx.Done()
	return ctx.Err()
}

// lie sends invalid frames and wrong digests, each on a new connection.
func (v *visitor) lie() error {
	shapes, err := newShapes()
	if err != nil {
		return err
	}
	for n := range visitSteps / 3 {
		if n%2 == 0 {
			err = v.garbage()
		} else {
			err = v.wrongDigest(shapes[0])
		}
		if err != nil {
			return err
		}
		time.Sleep(visitPause)
	}
	return nil
}

// garbage sends a frame of random bytes, sometimes after a valid header.
func (v *visitor) garbage() error {
	l, err := v.dial()
	if err != nil {
		return err
	}
	defer l.conn.Close()
	b := make([]byte, 1+v.rng.IntN(4096))
	for i := range b {
		b[i] = byte(v.rng.Uint32())
	}
	if v.rng.IntN(2) == 0 {
		h := wire.Header{Op: wire.OpMatch, Request: 99, Epoch: l.hello.BootEpoch}
		frame, err := wire.AppendFrame(nil, &h, &wire.StatsRequest{})
		if err != nil {
			return err
		}
		b = append(frame[:min(len(frame), wire.HeaderBytes)], b...)
	}
	v.Lies++
	if l.conn.Send(b, nil) != nil {
		return nil // the connection was dropped
	}
	if _, code, err := l.receive(); err == nil && code == wire.OK {
		v.Believed++
	}
	return nil
}

// wrongDigest reserves a segment and commits its bytes with a wrong digest.
func (v *visitor) wrongDigest(s *shape) error {
	l, err := v.dial()
	if err != nil {
		return err
	}
	defer l.conn.Close()
	const probe = 5
	var known wire.ProfileReply
	if code, err := l.ask(wire.OpProfile, &wire.ProfileRequest{
		ProbeTokens: probe, SegmentBytes: uint64(s.profile.SegmentLayout(probe).Bytes), CheckpointBytes: uint64(s.profile.CheckpointLayout(probe).Bytes),
		Identity: s.profile.Canonical(),
	}, &known); err != nil || code != wire.OK {
		return errors.Join(err, refusedWith(code))
	}
	spec := profile.FirstSpec(1 + v.rng.IntN(5000)) // of token ids 0: staging is zeros
	key := s.profile.SegmentKey(l.hello.Tenants[0].Salt, spec, make([]uint32, spec.Tokens))
	var room wire.ReserveReply
	code, err := l.ask(wire.OpReserve, &wire.ReserveRequest{
		Profile: known.Profile, Keys: [][32]byte{key}, Roles: []uint8{uint8(spec.Role)}, Heads: []uint32{0}, Tails: []uint32{0},
		Tokens: []uint32{uint32(spec.Tokens)}, TokenOff: []uint64{0},
	}, &room)
	if err != nil || code != wire.OK || wire.Code(room.Codes[0]) != wire.OK {
		return err // no room at the moment, or another visitor has reserved the segment
	}
	v.Lies++
	var done wire.CommitReply
	code, err = l.ask(wire.OpCommit, &wire.CommitRequest{
		Reservations: room.Reservations, Parts: []uint32{0}, ChunkFirst: []uint32{0}, ChunkCount: []uint32{1}, StagingOff: []uint64{0},
		Digest: []uint64{v.rng.Uint64()},
	}, &done)
	if err == nil && code == wire.OK && wire.Code(done.Codes[0]) == wire.OK {
		v.Believed++
	}
	return err
}

func refusedWith(code wire.Code) error {
	if code == wire.OK || code == wire.Busy || code == wire.Full {
		return nil
	}
	return fmt.Errorf("refused: %v", code)
}

// frames is a connection on which a client can break the protocol.
type frames struct {
	conn  *seqpacket.Conn
	hello wire.HelloReply
	last  uint64
}

func (v *visitor) dial() (*frames, error) {
	conn, err := seqpacket.Dial(v.socket, patience)
	if err != nil {
		return nil, err
	}
	l := &frames{conn: conn}
	code, err := l.ask(wire.OpHello, &wire.HelloRequest{MinVersion: wire.Version, MaxVersion: wire.Version, Tenants: []wire.TenantName{{}}, StagingBytes: visitStaging}, &l.hello)
	if err == nil && code != wire.OK {
		err = fmt.Errorf("hello: %v", code)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}

func (l *frames) send(op wire.Op, m wire.Message) error {
	l.last++
	frame, err := wire.AppendFrame(nil, &wire.Header{Op: op, Request: l.last, Epoch: l.hello.BootEpoch, Tenant: l.tenant()}, m)
	if err != nil {
		return err
	}
	return l.conn.Send(frame, nil)
}

func (l *frames) tenant() uint32 {
	if len(l.hello.Tenants) == 0 {
		return 0
	}
	return l.hello.Tenants[0].ID
}

func (l *frames) receive() ([]byte, wire.Code, error) {
	if err := l.conn.SetRecvTimeout(patience); err != nil {
		return nil, 0, err
	}
	buf := make([]byte, wire.MaxFrame)
	n, fds, err := l.conn.Recv(buf)
	for begun := time.Now(); errors.Is(err, seqpacket.ErrTimeout) && time.Since(begun) < patience; { // a signal may end a wait early
		n, fds, err = l.conn.Recv(buf)
	}
	if err != nil {
		return nil, 0, err
	}
	seqpacket.CloseAll(fds)
	h, body, err := wire.ParseHeader(buf[:n])
	return body, h.Code, err
}

// ask sends a request and waits for its answer. If the code is OK, it decodes the answer.
func (l *frames) ask(op wire.Op, m wire.Message, into interface{ Decode([]byte) error }) (wire.Code, error) {
	err := l.send(op, m)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	body, code, err := l.receive()
	if err == nil && code == wire.OK {
		err = into.Decode(body)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	return code, nil
}

// mill is one worker with its own client. It puts new items, reads back the most recent ones,
// and compares each byte.
type mill struct {
	client   *client
	shapes   []*shape
	seed     uint64
	tokens   int // of the largest item
	rng      *rand.Rand
	number   uint64
	recent   []*item
	findings Findings
	steps    int
	absent   int // evicted items
	refused  int // puts
}

// The steps of a mill.
const (
	millPut        = 20 // percent of steps; others read
	millCheckpoint = 4  // one in this number of puts
	millRecent     = 400
)

func newMill(c *client, shapes []*shape, seed uint64, tokens int) *mill {
	return &mill{client: c, shapes: shapes, seed: seed, tokens: tokens, rng: rand.New(rand.NewPCG(seed, 6))}
}

// step does one operation, a put or a read.
func (m *mill) step(ctx context.Context, tell timed) error {
	m.steps++
	if len(m.recent) == 0 || m.rng.IntN(100) < millPut {
		return m.put(ctx)
	}
	i := m.recent[m.rng.IntN(len(m.recent))]
	if !i.isSegment() {
		there, err := m.findings.check(ctx, once{m.client, nil}, i)
		if !there && err == nil {
			m.absent++
		}
		return err
	}
	return m.read(ctx, i, tell)
}

func (m *mill) put(ctx context.Context) error {
	m.number++
	s := m.shapes[m.rng.IntN(len(m.shapes))]
	var i *item
	if m.rng.IntN(millCheckpoint) == 0 {
		i = newCheckpoint(s, m.seed, m.number, nil, tier.Exact, m.rng, m.tokens)
	} else {
		i = newSegment(s, m.seed, m.number, m.rng, m.tokens)
	}
	_, err := m.client.put(ctx, i, levels[m.rng.IntN(len(levels))], func() {})
	switch {
	case err == nil:
		m.recent = append(m.recent[max(0, len(m.recent)-millRecent+1):], i)
	case refused(i, err):
		m.refused++
		err = nil
	}
	return err
}

// read matches, acquires, compares and releases an item, and reports each call's time to tell.
func (m *mill) read(ctx context.Context, i *item, tell timed) error {
	begun := time.Now()
	found, err := m.client.found(ctx, []*item{i})
	tell.since("match", begun)
	if err != nil {
		return err
	}
	if !found[0] {
		m.absent++
		return nil
	}
	there, err := m.findings.check(ctx, once{m.client, tell}, i)
	if !there && err == nil {
		m.absent++
	}
	return err
}

// keep leases the last segment, if it is present.
func (m *mill) keep(ctx context.Context) *connector.Lease {
	if len(m.recent) == 0 {
		return nil
	}
	i := m.recent[len(m.recent)-1]
	if !i.isSegment() {
		return nil
	}
	rows, err := m.client.models[i.shape][0].Acquire(ctx, []profile.SegmentKey{i.Key}, connector.AcquireOptions{})
	if err != nil {
		return nil
	}
	return rows[0].Lease
}
