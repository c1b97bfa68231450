package hostile

import (
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
)

// frames is a client that says frame by frame what a good one never would. It has one
// request in flight at a time.
type frames struct {
	t     testing.TB
	conn  *seqpacket.Conn
	hello wire.HelloReply
	last  uint64
}

// frames connects and says hello; the regions that come with it are closed.
func (v *victim) frames(hello *wire.HelloRequest) (*frames, wire.Code) {
	v.t.Helper()
	f, fds, code := v.framesAndRegions(hello)
	seqpacket.CloseAll(fds)
	return f, code
}

// framesAndRegions is frames with the descriptors of the regions, for the caller to close.
func (v *victim) framesAndRegions(hello *wire.HelloRequest) (*frames, []int, wire.Code) {
	v.t.Helper()
	conn, err := seqpacket.Dial(v.Socket, patience)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { conn.Close() })
	f := &frames{t: v.t, conn: conn}
	hello.MinVersion, hello.MaxVersion = wire.Version, wire.Version
	if hello.Tenants == nil {
		hello.Tenants = []wire.TenantName{{}}
	}
	if err := f.send(wire.OpHello, hello); err != nil {
		v.t.Fatal(err)
	}
	body, fds, code, err := f.receiveAll()
	if err == nil && code == wire.OK {
		err = f.hello.Decode(body)
	}
	if err != nil {
		v.t.Fatal(err)
	}
	return f, fds, code
}

// ask sends a request and waits for its reply.
func (f *frames) ask(op wire.Op, m wire.Message) ([]byte, wire.Code) {
	f.t.Helper()
	body, code, err := f.exchange(op, m)
	if err != nil {
		f.t.Fatal(err)
	}
	return body, code
}

// exchange is ask for other goroutines than the test's.
func (f *frames) exchange(op wire.Op, m wire.Message) ([]byte, wire.Code, error) {
	if err := f.send(op, m); err != nil {
		return nil, 0, err
	}
	return f.receive()
}

// send sends a request and waits for nothing.
func (f *frames) send(op wire.Op, m wire.Message) error {
	f.last++
	h := wire.Header{Op: op, Request: f.last, Epoch: f.hello.BootEpoch}
	if len(f.hello.Tenants) > 0 {
		h.Tenant = f.hello.Tenants[0].ID
	}
	frame, err := wire.AppendFrame(nil, &h, m)
	if err != nil {
		return err
	}
	return f.conn.Send(frame, nil)
}

// receive waits for a reply.
func (f *frames) receive() ([]byte, wire.Code, error) {
	body, fds, code, err := f.receiveAll()
	seqpacket.CloseAll(fds)
	return body, code, err
}

func (f *frames) receiveAll() ([]byte, []int, wire.Code, error) {
	if err := f.conn.SetRecvTimeout(patience); err != nil {
		return nil, nil, 0, err
	}
	buf := make([]byte, wire.MaxFrame)
	n, fds, err := f.conn.Recv(buf)
	for begun := time.Now(); errors.Is(err, seqpacket.ErrTimeout) && time.Since(begun) < patience; { // a signal ends it early
		n, fds, err = f.conn.Recv(buf)
	}
	if err != nil {
		return nil, nil, 0, err
	}
	h, body, err := wire.ParseHeader(buf[:n])
	return body, fds, h.Code, err
}

// register registers a profile.
func (f *frames) register(p *profile.Profile) (id uint32) {
	f.t.Helper()
	const tokens = 5
	body, code := f.ask(wire.OpProfile, &wire.ProfileRequest{
		ProbeTokens: tokens, SegmentBytes: uint64(p.SegmentLayout(tokens).Bytes), CheckpointBytes: uint64(p.CheckpointLayout(tokens).Bytes),
		Identity: p.Canonical(),
	})
	var r wire.ProfileReply
	if code != wire.OK {
		f.t.Fatalf("profile: %v: %s", code, wire.ErrorText(body))
	}
	if err := r.Decode(body); err != nil {
		f.t.Fatal(err)
	}
	return r.Profile
}
