package daemon

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// Leases are gone once they are released: the number that says so is written, and
// the request answered, though it was canceled meanwhile.
func TestAnOrderThatReleasedIsAnsweredAndItsNumberWritten(t *testing.T) {
	r, double, c, d := publishedDouble(t)
	lease := c.deviceLease(d)
	stall := double.Stall(t, gpuipc.OpStore, 1)
	request := c.send(wire.OpOrder, &wire.OrderRequest{Signal: 1, Leases: []uint64{lease}})
	stall.Await()
	c.send(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{request}})
	if codes := c.release(lease); wire.Code(codes[0]) != wire.Gone {
		t.Errorf("while the number is written the lease is %v", wire.Code(codes[0]))
	}
	stall.Release()
	code, body, _ := c.await(request)
	var m wire.CodesReply
	if code != wire.OK || m.Decode(body) != nil || wire.Code(m.Codes[0]) != wire.OK {
		t.Errorf("order: %v %s", code, wire.ErrorText(body))
	}
	if n := c.number(order.Daemon); n != 1 {
		t.Errorf("the daemon's slot is at %d", n)
	}
	c.close()
	r.deviceAtRest()
}

// A client whose streams would wait for a number for ever hears of it.
func TestANumberThatCannotBeWrittenEndsTheConnection(t *testing.T) {
	r, double := startDouble(t, deviceConfig(t))
	c := attachDouble(t, r.Socket())
	double.Fail(gpuipc.OpStore, 1, gpuipc.ErrUnavailable)
	c.send(wire.OpOrder, &wire.OrderRequest{Signal: 1})
	eventually(t, "waiters are let go", func() bool { return c.number(order.Daemon) == order.Released })
	c.close()
	r.deviceAtRest()
}

// What connections have of the GPU is what it gave, not what they wished for.
func TestTheBoundOfConnectionsCountsWhatTheGPUGives(t *testing.T) {
	config := deviceConfig(t)
	config.HBMClient, config.HBMConnections = 512*settings.KiB, 5*settings.MiB
	r, _ := startFake(t, config)
	var all []*rawClient
	for _, want := range []wire.Code{wire.OK, wire.OK, wire.Full} {
		c := deviceHello(t, r.Socket())
		all = append(all, c)
		var m wire.AttachDeviceReply
		body, fds, code := c.exchange(wire.OpAttachDevice, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor}, &m)
		closeAll(fds)
		if code != want {
			t.Errorf("client %d: %v %s", len(all), code, wire.ErrorText(body))
		}
		if code == wire.OK && r.gpus[0].ConnectionBytes() != int64(len(all))*int64(m.PrivateBytes) {
			t.Errorf("%d bytes lent to %d clients with %d each", r.gpus[0].ConnectionBytes(), len(all), m.PrivateBytes)
		}
	}
	for _, c := range all {
		c.close()
	}
	r.deviceAtRest()
}

// The end of a connection does not wait for a driver that hangs. What the call uses
// is given back when it is over.
func TestAConnectionEndsThoughTheGPUHangs(t *testing.T) {
	config := deviceConfig(t)
	config.HBMTimeout = 20 * time.Millisecond
	r, double := startDouble(t, config)
	c := attachDouble(t, r.Socket())
	stall := double.Stall(t, gpuipc.OpStore, 1)
	c.close()
	stall.Await()
	eventually(t, "the connection is gone", func() bool { return len(r.server.Connections()) == 0 })
	if r.gpus[0].ConnectionBytes() == 0 {
		t.Error("memory was given back while a call uses it")
	}
	stall.Release()
	r.deviceAtRest()
}
