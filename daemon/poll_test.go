package daemon

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// several attaches more clients than there are goroutines that receive.
func several(t *testing.T, path string) []*rawClient {
	t.Helper()
	var all []*rawClient
	for range runtime.GOMAXPROCS(0) + 2 {
		all = append(all, attach(t, path))
	}
	return all
}

func TestAClientThatDoesNotReadKeepsNobodyWaiting(t *testing.T) {
	config := testConfig(t)
	config.SendTimeout = time.Minute
	r := startDaemon(t, config, nil)
	slow := attach(t, r.Socket())
	must(t, slow.conn.SetSendTimeout(20*time.Millisecond))
	sent := 0
	for full := 0; full < 3; { // neither side has room: the daemon waits with a reply
		h := slow.header(wire.OpStats)
		frame, _ := wire.AppendFrame(nil, &h, &wire.StatsRequest{})
		switch err := slow.conn.Send(frame, nil); {
		case err == nil:
			sent, full = sent+1, 0
		case errors.Is(err, seqpacket.ErrTimeout):
			full++
		default:
			t.Fatal(err)
		}
	}
	for _, c := range several(t, r.Socket()) {
		for range 3 {
			c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
		}
	}
	for i := range sent {
		if h, _, _, err := slow.receive(); err != nil || h.Code != wire.OK {
			t.Fatalf("reply %d of %d: %v, %v", i, sent, h.Code, err)
		}
	}
	slow.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
	if n := r.counter("connections_dropped_slow_reader"); n != 0 {
		t.Errorf("%v clients were dropped", n)
	}
}

// Whoever has received a job runs it. Neither other clients nor its own wait for
// that, whether somebody else has made requests lately or not.
func TestAJobKeepsNobodyWaiting(t *testing.T) {
	for name, lately := range map[string]bool{"others are silent": false, "others make requests": true} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
			r := startDaemon(t, testConfig(t), device)
			busy, others := attach(t, r.Socket()), several(t, r.Socket())
			p := testProfile(1)
			busy.register(p)
			d := newDocument(p, nil, 1, 64, profile.RoleFirst)
			busy.publish(d)
			lease := busy.lease(d)
			if lately {
				for _, c := range others {
					c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
				}
			}
			stall := device.Stall(t, gpuipc.OpCompose, 1)
			job := busy.send(wire.OpCompose, &wire.ComposeRequest{Profile: busy.profile, Layer: 0, Plan: onePlan(lease, d, 1)})
			stall.Await()
			for _, c := range append(others, busy) {
				c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
			}
			stall.Release()
			if code, body, _ := busy.await(job); code != wire.OK {
				t.Errorf("the job: %v %s", code, wire.ErrorText(body))
			}
			for _, c := range append(others, busy) {
				c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
				c.close()
			}
			r.atRest()
		})
	}
}
