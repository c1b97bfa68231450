package connector

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
)

// dial connects, says hello and maps what comes back.
func dial(c *Client) (*attachment, error) {
	a, err := connect(c, c.opt.Device)
	if err == nil && a.deviceErr != nil {
		c.opt.Log.Warn().Err(a.deviceErr).Msg("no device memory of the cache daemon, going on without")
		if errors.Is(a.deviceErr, errNoReply) {
			a.release() // it was never published
			return connect(c, nil)
		}
	}
	return a, err
}

func connect(c *Client, device gpuipc.Accelerator) (*attachment, error) {
	path := c.opt.Socket
	if path == "" {
		path = DefaultSocket()
	}
	deadline := time.Now().Add(c.opt.Timeouts.Attach)
	conn, err := seqpacket.Dial(path, c.opt.Timeouts.Attach)
	if err != nil {
		return nil, err
	}
	a := &attachment{
		client: c, conn: conn, peer: newPeer(conn), rbuf: make([]byte, wire.MaxFrame),
		token: make(chan struct{}, 1), dead: make(chan struct{}), gone: make(chan struct{}),
	}
	a.token <- struct{}{}
	fds, err := a.hello(device != nil, deadline)
	if err != nil {
		seqpacket.CloseAll(fds)
		conn.Close()
		a.peer.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if device != nil {
		a.deviceErr = a.attachDevice(device, deadline)
	}
	return a, nil
}

// hello is the first request of a connection. On success it took over the
// descriptors, otherwise it returns them.
func (a *attachment) hello(device bool, deadline time.Time) ([]int, error) {
	o := &a.client.opt
	request := &wire.HelloRequest{
		MinVersion: wire.Version, MaxVersion: wire.Version, Client: o.Name,
		StagingBytes: uint64(o.StagingBytes), SlotBytes: uint64(o.SlotBytes),
	}
	if device {
		request.Features |= wire.FeatureDevice
		a.conn.AllowDescriptors(seqpacket.MaxDescriptors)
	}
	for _, t := range o.Tenants {
		request.Tenants = append(request.Tenants, wire.TenantName(t))
	}
	h := wire.Header{Op: wire.OpHello, Request: 1, Deadline: microseconds(deadline)}
	frame, err := wire.AppendFrame(nil, &h, request)
	if err != nil {
		return nil, err
	}
	// A daemon that turned us away has said why before it closed.
	if err := a.send(a.client.ctx, frame, nil, deadline); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
		return nil, fmt.Errorf("hello: %w", err)
	}
	body, fds, err := a.early(&h, deadline)
	if err != nil {
		return fds, err
	}
	var m wire.HelloReply
	if err := m.Decode(body); err != nil {
		return fds, err
	}
	return a.adopt(&m, fds)
}

// errNoReply: a reply may still come, which nobody would take. The connection is
// of no use.
var errNoReply = errors.New("no reply")

// early receives the reply to a request that is sent before others may be,
// looking up now and then whether the client has been closed.
func (a *attachment) early(request *wire.Header, deadline time.Time) (body []byte, fds []int, err error) {
	for {
		left := time.Until(deadline)
		if left <= 0 || a.client.ctx.Err() != nil {
			return nil, nil, fmt.Errorf("%s: %w in time: %w", request.Op, errNoReply, ErrLate)
		}
		if err := a.conn.SetRecvTimeout(min(left, readTick)); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errNoReply, err)
		}
		n, fds, err := a.conn.Recv(a.rbuf)
		if errors.Is(err, seqpacket.ErrTimeout) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w: %w", request.Op, errNoReply, err)
		}
		h, body, err := wire.ParseHeader(a.rbuf[:n])
		switch {
		case err != nil:
		case h.Kind == wire.Reply && h.Op == wire.OpHello && h.Request == 0 && h.Code != wire.OK:
			err = refusal(wire.OpHello, h.Code, body) // turned away before we said a word
		case h.Kind != wire.Reply || h.Op != request.Op || h.Request != request.Request:
			err = fmt.Errorf("%s: reply to %s, request %d", request.Op, h.Op, h.Request)
		case h.Code != wire.OK:
			err = refusal(request.Op, h.Code, body)
		}
		return body, fds, err
	}
}

// adopt checks the reply and maps the regions.
func (a *attachment) adopt(m *wire.HelloReply, fds []int) ([]int, error) {
	switch {
	case m.Version != wire.Version:
		return fds, fmt.Errorf("hello: version %d: %w", m.Version, ErrUnsupported)
	case len(fds) != wire.HelloDescriptors:
		return fds, fmt.Errorf("hello: %d descriptors, want %d", len(fds), wire.HelloDescriptors)
	case len(m.Tenants) != len(a.client.opt.Tenants):
		return fds, fmt.Errorf("hello: %d tenants, want %d", len(m.Tenants), len(a.client.opt.Tenants))
	case m.BootEpoch == 0 || m.MaxInFlight == 0:
		return fds, fmt.Errorf("hello: epoch %d, %d in flight", m.BootEpoch, m.MaxInFlight)
	}
	a.lends = m.Features&wire.FeatureDevice != 0
	a.epoch, a.grants, a.server = m.BootEpoch, m.Tenants, m.Server
	regions := []struct {
		name     string
		bytes    uint64
		writable bool
		to       **gpuipc.Mapping
	}{
		{"arena", m.ArenaBytes, false, &a.arena},
		{"slots", m.SlotBytes, false, &a.slots},
		{"staging", m.StagingBytes, true, &a.region},
	}
	for i, r := range regions {
		mapping, err := gpuipc.Map(gpuipc.Handle{File: os.NewFile(uintptr(fds[i]), r.name), Bytes: int64(r.bytes)}, r.writable)
		if err != nil {
			for _, done := range regions[:i] {
				(*done.to).Close()
			}
			return fds[i+1:], fmt.Errorf("hello: %s: %w", r.name, err)
		}
		*r.to = mapping
	}
	a.staging = newStaging(a.region.Bytes())
	a.flight.init(int(min(m.MaxInFlight, maxInFlight)))
	a.refs.Store(1)
	return nil, nil
}
