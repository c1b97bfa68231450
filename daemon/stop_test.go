package daemon

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// stalledCommit is a daemon whose device stands before a commit's copy.
func stalledCommit(t *testing.T, device *gpuipctest.Device, c settings.Config) (*running, *rawClient, *gpuipctest.Stall, uint64) {
	t.Helper()
	r, client, p := startClient(t, c, device)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	id, _ := client.reserve(d, 0)
	stall := device.Stall(t, gpuipc.OpCopyDigests, 1)
	request := client.send(wire.OpCommit, client.commitRequest(id, d.layout, d.bytes))
	stall.Await()
	return r, client, stall, request
}

func TestStoppingRefusesNewWorkAndLetsRunningWorkEnd(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	config := testConfig(t)
	config.DrainTimeout = patience
	r, c, stall, request := stalledCommit(t, device, config)
	r.cancel()
	eventually(t, "the daemon refuses work", func() bool {
		code, _, _ := c.await(c.send(wire.OpMatch, &wire.MatchRequest{Profile: c.profile}))
		return code == wire.Unavailable
	})
	if _, err := os.Lstat(config.Socket); !os.IsNotExist(err) {
		t.Errorf("the path while stopping: %v", err)
	}
	c.refused(wire.OpMatch, &wire.MatchRequest{Profile: c.profile}, wire.Unavailable, "stopping")
	c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
	c.release(1)
	if r.serving.Load() {
		t.Error("ready while stopping")
	}
	stall.Release()
	if code, body, _ := c.await(request); code != wire.OK {
		t.Errorf("the running commit: %v %s", code, wire.ErrorText(body))
	}
	if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("then %v", err)
	}
	r.stop()
}

func TestADeviceThatHangsDoesNotKeepTheDaemonFromEnding(t *testing.T) {
	inner, err := gpuipc.NewHost(gpuipc.HostOptions{Workers: 1})
	must(t, err)
	config := testConfig(t)
	config.DrainTimeout = 10 * time.Millisecond
	r, c, stall, _ := stalledCommit(t, gpuipctest.Wrap(inner), config)
	if err := r.end(); !errors.Is(err, server.ErrStuck) {
		t.Errorf("the daemon ended with: %v", err)
	}
	// The process would end here; this one goes on and lets the work go, which
	// must still find its memory.
	stall.Release()
	if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("the client reads %v", err)
	}
	must(t, errors.Join(r.server.Stop(), r.server.StopWatch(), r.close(), inner.Close()))
}
