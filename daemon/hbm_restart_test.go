package daemon

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
	"github.com/spliced-kv/spliced/policy/profile"
)

// daemonEnv makes the test binary a daemon on this socket, with the directory of notedEnv or
// switchedEnv, or else with the driver of libraryEnv.
const daemonEnv = "SPLICED_TEST_DAEMON"

// serveAndDie is a daemon in a process of its own, until it is killed or its
// driver ends it.
func serveAndDie(socket string) {
	var t clientProcess
	var config settings.Config
	parts := Parts{Log: zerolog.Nop(), Build: Build{Version: "test"}}
	noted, switched := os.Getenv(notedEnv), os.Getenv(switchedEnv)
	switch {
	case noted != "":
		config, parts.Lower = evicting(t, noted), fullDisk
	case switched != "":
		config = diskIn(t, switched)
	default:
		config = deviceConfig(t)
		config.HBMLibrary = os.Getenv(libraryEnv)
	}
	config.Socket = socket
	d, err := New(config, parts)
	if err == nil {
		if noted != "" {
			d.every = 20 * time.Millisecond
		}
		err = d.Run(context.Background())
	}
	t.Fatal(err)
}

// lifeOfDaemon is a daemon process and what an engine does while it lives.
type lifeOfDaemon struct {
	t       *testing.T
	command *exec.Cmd
	ended   chan struct{}
}

func startDaemonProcess(t *testing.T, socket, library string, faults ...fakecuda.Fault) *lifeOfDaemon {
	t.Helper()
	command := ourselves(append(fakecuda.Setup{Faults: faults}.Env(library), daemonEnv+"="+socket, libraryEnv+"="+library)...)
	l := &lifeOfDaemon{t: t, command: command, ended: make(chan struct{})}
	must(t, l.command.Start())
	go func() {
		defer close(l.ended)
		_ = l.command.Wait()
	}()
	return l
}

func (l *lifeOfDaemon) alive() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// kill ends the process, if it lives, and checks that it was a kill that ended it.
func (l *lifeOfDaemon) kill() {
	l.t.Helper()
	_ = l.command.Process.Kill()
	<-l.ended
	if status, ok := l.command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		l.t.Errorf("the daemon: %v", l.command.ProcessState)
	}
}

// useUntilItEnds does what an engine does, on the device and without, and returns
// a lease on the device where it got one. Errors are what a dying daemon gives;
// waiting for one longer than patience is the failure.
func useUntilItEnds(t *testing.T, m *connector.Model, d *document) (lease *connector.DeviceLease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _ = m.Put(ctx, &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(d)}})
	rows, err := m.AcquireDevice(ctx, []profile.SegmentKey{d.key}, connector.AcquireOptions{Digests: true, Wait: patience})
	if err == nil && rows[0].Err == nil {
		lease = rows[0].Lease
	}
	if err := ctx.Err(); err != nil {
		t.Fatalf("an engine waits for a dead daemon: %v", err)
	}
	return lease
}

// A daemon may end in any call of its driver. Its clients notice, their streams
// are let go, and the next daemon finds them and gives them their segments.
func TestTheDaemonMayDieInAnyDriverCall(t *testing.T) {
	leakCheck(t)
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	p := testProfile(1)
	socket := testConfig(t).Socket
	device := openDevice(t, lib.Path)
	first := startDaemonProcess(t, socket, lib.Path)
	listens(t, socket)
	c, m := openDeviceClient(t, socket, device, p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	first.kill()
	eventually(t, "the client knows", func() bool { return !c.Attached() })
	calls := append([]string{"run.copy", "run.launch", "run.memset", "run.record", "cuEventQuery"}, daemonCalls...)
	died, leased := 0, 0
	for i, call := range calls {
		if givenBack(call) || testing.Short() && i%6 != 0 {
			continue
		}
		daemon := startDaemonProcess(t, socket, lib.Path, fakecuda.Fault{Kind: fakecuda.Die, Call: call, Nth: 1 + i%2})
		eventually(t, fmt.Sprintf("the client is back, or the daemon dead of %s", call), func() bool { return m.Ready() == nil || !daemon.alive() })
		page, _ := c.Order()
		lease := useUntilItEnds(t, m, d)
		if !daemon.alive() {
			died++
		}
		daemon.kill()
		eventually(t, "the client knows", func() bool { return !c.Attached() })
		if lease == nil {
			continue // nothing keeps the page
		}
		leased++
		if seen, err := page.Wait(context.Background(), order.Daemon, 1); err != nil || seen != order.Released {
			t.Errorf("%s: streams wait for a dead daemon: its slot is at %d, %v", call, seen, err)
		}
		lease.Release()
	}
	if died == 0 || leased == 0 && !testing.Short() {
		t.Errorf("%d daemons died of their driver, %d leases outlived one", died, leased)
	}
	last := startDaemonProcess(t, socket, lib.Path)
	eventually(t, "the client is back", func() bool { return m.Ready() == nil })
	put(t, m, d)
	lease := onDevice(t, m, d)
	if string(read(t, device, lease.Part(0))) != string(partsOf(d)[0]) {
		t.Error("the bytes differ")
	}
	lease.Release()
	last.kill()
	c.Close()
}
