package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spliced-kv/spliced/connector/trust"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
)

// Dial connects to the daemon's socket, sends hello and maps the memory that the reply grants.
func Dial(h *Host, path string) (*Attachment, error) {
	a, err := connect(h, path, h.Device)
	if err == nil && a.deviceErr != nil {
		h.Log.Warn().Err(a.deviceErr).Msg("no device memory of the cache daemon, continuing without")
		if errors.Is(a.deviceErr, errNoReply) {
			a.Release() // it was never published
			return connect(h, path, nil)
		}
	}
	return a, err
}

func connect(h *Host, path string, device gpuipc.Accelerator) (*Attachment, error) {
	deadline := time.Now().Add(h.AttachTimeout)
	conn, err := seqpacket.Dial(path, h.AttachTimeout)
	if err != nil {
		return nil, err
	}
	// This check comes before hello, because hello carries the tenants' tokens.
	if err := trust.Check(conn.Fd(), path, h.DaemonUID); err != nil {
		conn.Close()
		return nil, err
	}
	a := &Attachment{
		host: h, conn: conn, peer: newPeer(conn), rbuf: make([]byte, wire.MaxFrame),
		token: make(chan struct{}, 1), Dead: make(chan struct{}), gone: make(chan struct{}),
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

// hello sends the first request of a connection and handles the reply. If it fails, it returns
// the reply's descriptors, and the caller closes them.
func (a *Attachment) hello(device bool, deadline time.Time) ([]int, error) {
	request := &wire.HelloRequest{
		MinVersion: wire.Version, MaxVersion: wire.Version, Client: a.host.Name,
		StagingBytes: uint64(a.host.StagingBytes), SlotBytes: uint64(a.host.SlotBytes), Tenants: a.host.Tenants,
		Features: wire.FeaturePrompt | wire.FeatureKnown | wire.FeatureEstimates | wire.FeatureRows | wire.FeaturePacked |
			wire.FeaturePrimers | wire.FeatureLosses,
	}
	if device {
		request.Features |= wire.FeatureDevice
		a.conn.AllowDescriptors(seqpacket.MaxDescriptors)
	}
	h := wire.Header{Op: wire.OpHello, Request: 1, Deadline: microseconds(deadline)}
	frame, err := wire.AppendFrame(nil, &h, request)
	if err != nil {
		return nil, err
	}
	// ErrClosed is ignored here: a daemon that refuses the connection sends its reason before it
	// closes.
	if err := a.send(a.host.Context, frame, nil, deadline); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
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

// errNoReply means that no reply came in time. The reply may still come, and no caller would
// read it, so the connection is unusable.
var errNoReply = errors.New("no reply")

// early receives the reply to a setup request, during which no other request may be sent. Every
// readTick it checks whether the client has been closed.
func (a *Attachment) early(request *wire.Header, deadline time.Time) (body []byte, fds []int, err error) {
	for {
		left := time.Until(deadline)
		if left <= 0 || a.host.Context.Err() != nil {
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
			err = Refusal(wire.OpHello, h.Code, body) // the daemon refused the connection before it read our hello
		case h.Kind != wire.Reply || h.Op != request.Op || h.Request != request.Request:
			err = fmt.Errorf("%s: reply to %s, request %d", request.Op, h.Op, h.Request)
		case h.Code != wire.OK:
			err = Refusal(request.Op, h.Code, body)
		}
		return body, fds, err
	}
}

// adopt checks the reply and maps the regions.
func (a *Attachment) adopt(m *wire.HelloReply, fds []int) ([]int, error) {
	switch {
	case m.Version != wire.Version:
		return fds, fmt.Errorf("hello: version %d: %w", m.Version, ErrUnsupported)
	case len(fds) != wire.HelloDescriptors:
		return fds, fmt.Errorf("hello: %d descriptors, want %d", len(fds), wire.HelloDescriptors)
	case len(m.Tenants) != len(a.host.Tenants):
		return fds, fmt.Errorf("hello: %d tenants, want %d", len(m.Tenants), len(a.host.Tenants))
	case m.BootEpoch == 0 || m.MaxInFlight == 0:
		return fds, fmt.Errorf("hello: epoch %d, %d in flight", m.BootEpoch, m.MaxInFlight)
	}
	a.hasDevice = m.Features&wire.FeatureDevice != 0
	a.HasKnown = m.Features&(wire.FeaturePrompt|wire.FeatureKnown) == wire.FeaturePrompt|wire.FeatureKnown
	a.HasRows = m.Features&wire.FeatureRows != 0
	a.HasPacked = m.Features&wire.FeaturePacked != 0
	a.HasPrimers = m.Features&wire.FeaturePrimers != 0
	a.HasLosses = m.Features&wire.FeatureLosses != 0
	a.Epoch, a.Grants, a.Server = m.BootEpoch, m.Tenants, m.Server
	regions := []struct {
		name     string
		bytes    uint64
		writable bool
		to       **gpuipc.Mapping
	}{
		{"arena", m.ArenaBytes, false, &a.Arena},
		{"slots", m.SlotBytes, false, &a.Slots},
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
	a.Staging = newStaging(a.region.Bytes())
	a.flight.init(int(min(m.MaxInFlight, maxInFlight)))
	a.refs.Store(1)
	return nil, nil
}
