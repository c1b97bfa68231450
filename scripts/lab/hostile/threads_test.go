package hostile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// A process that gets no more threads is aborted by its runtime: clients must not be
// able to bring it there.
func TestHostileConnectionsDoNotTakeAllThreads(t *testing.T) {
	v := start(t, bounds{Cgroups: []string{cgroup(t, "pids.max", 100)}})
	degraded := false
	for _, c := range v.health().Checks {
		degraded = degraded || c.Name == "connections" && c.State == api.CheckDegraded && strings.Contains(c.Detail, "100 threads")
	}
	if !degraded {
		t.Errorf("readiness does not say that there are few threads: %v", v.health().Checks)
	}
	other := v.client(connector.Options{Name: "other"})
	const clients = 300
	served := 0
	for range clients {
		conn, err := seqpacket.Dial(v.Socket, patience)
		if err != nil {
			continue
		}
		defer conn.Close()
		if err := conn.SetRecvTimeout(time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Recv(make([]byte, 1<<16)); err != nil && strings.Contains(err.Error(), "timed out") {
			served++
		}
	}
	v.mustRun()
	if !other.Attached() {
		t.Error("the other client has lost the daemon")
	}
	report(t, fmt.Sprintf("%d connections that say nothing, at pids.max=100", clients), fmt.Sprintf("%d places, the others an answer that says busy", served), "nothing, its connection stayed")
}

// A machine of 512 MiB is enough to start on without a setting.
func TestHostileSmallMachineIsEnough(t *testing.T) {
	v := start(t, bounds{Cgroups: []string{cgroup(t, "memory.max", 512<<20)}}, unset...)
	var clients int
	for range 4 {
		if v.client(connector.Options{Name: "engine"}).Attached() {
			clients++
		}
	}
	report(t, "a start without settings in 512 MiB", fmt.Sprintf("%d clients attached", clients), "nothing")
}

// unset takes back the settings of small.
var unset = []string{"-arena=0", "-private=0", "-staging=0", "-slots=0", "-connection-memory=0"}

// A restart on a node that is fuller than before, or a limit that was lowered, costs
// places and not the pod.
func TestHostileArenaLargerThanMemoryIsCut(t *testing.T) {
	v := start(t, bounds{Cgroups: []string{cgroup(t, "memory.max", 512<<20)}}, append(unset, "-arena=6GiB", "-private=1GiB")...)
	degraded := ""
	for _, c := range v.health().Checks {
		if c.Name == "memory" && c.State == api.CheckDegraded {
			degraded = c.Detail
		}
	}
	if !strings.Contains(degraded, "reduced to 3") {
		t.Errorf("readiness says %q", degraded)
	}
	v.client(connector.Options{Name: "engine"})
	report(t, "an arena of 6 GiB in 512 MiB", "a start, degraded: "+degraded, "fewer places")
}
