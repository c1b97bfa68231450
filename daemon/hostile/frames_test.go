package hostile

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
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
	body, code := f.ask(wire.OpHello, hello)
	if code == wire.OK {
		if err := f.hello.Decode(body); err != nil {
			v.t.Fatal(err)
		}
	}
	return f, code
}

// ask sends a request and waits for its reply.
func (f *frames) ask(op wire.Op, m wire.Message) ([]byte, wire.Code) {
	f.t.Helper()
	f.last++
	h := wire.Header{Op: op, Request: f.last, Epoch: f.hello.BootEpoch}
	if len(f.hello.Tenants) > 0 {
		h.Tenant = f.hello.Tenants[0].ID
	}
	frame, err := wire.AppendFrame(nil, &h, m)
	if err == nil {
		err = f.conn.Send(frame, nil)
	}
	if err == nil {
		err = f.conn.SetRecvTimeout(patience)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	buf := make([]byte, wire.MaxFrame)
	n, fds, err := f.conn.Recv(buf)
	if err != nil {
		f.t.Fatal(err)
	}
	seqpacket.CloseAll(fds)
	h, body, err := wire.ParseHeader(buf[:n])
	if err != nil {
		f.t.Fatal(err)
	}
	return body, h.Code
}
