package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// A process with 1024 descriptors, as many get, is filled with registered memory, with
// connections, and with descriptors that come along where none belong.
func TestHostileDescriptorsOfTheDaemonAreNotUsedUp(t *testing.T) {
	disk := shortDir(t)
	v := start(t, bounds{Limits: map[int]uint64{unix.RLIMIT_NOFILE: 1024}},
		"-max-connections=4096", "-connection-memory=16GiB", "-disk="+disk, "-disk-size=64MiB", "-disk-private=8MiB", "-disk-slab=4MiB", "-disk-reserve=0B")
	n := v.neighbour()
	registrations, connections := 0, 0
	felt := n.during(func() {
		registrations = registerOften(t, v)
		connections = connectOften(t, v, func() {
			// With every place taken, the admin answers and the disk makes files.
			if status, body := v.get("/readyz"); status != http.StatusOK {
				t.Errorf("readiness: %d %s", status, body)
			}
			n.synced(20)
		})
	})
	v.mustRun()
	m := registered(t, v.client(connector.Options{Name: "late"}), modelNamed("late"), connector.Binding{})
	if _, err := put(m, 64); err != nil {
		t.Errorf("a client after the attack: %v", err)
	}
	report(t, "1,200 registrations, 2,000 connections and frames of 8 descriptors against 1,024 descriptors",
		fmt.Sprintf("%d registrations, %d connections, full beyond", registrations, connections), felt)
}

// registerOften registers memory on 20 connections and keeps it.
func registerOften(t *testing.T, v *victim) (accepted int) {
	t.Helper()
	for range 20 {
		c := v.client(connector.Options{Name: "attacker"})
		for range 60 {
			_, err := c.Register(modelNamed("attacker"), connector.Binding{BlockTokens: 1, Memory: inBlocks(sparse(t, 64<<10), 64<<10, 8192)})
			switch {
			case err == nil:
				accepted++
			case !errors.Is(err, connector.ErrFull):
				t.Fatalf("registration %d: %v", accepted, err)
			}
		}
	}
	return accepted
}

// connectOften keeps as many connections as it gets, each with a frame of descriptors
// behind it, and counts those that were attached; it lets go of all after while.
func connectOften(t *testing.T, v *victim, while func()) (kept int) {
	t.Helper()
	stray := sparse(t, 4096)
	var conns []*seqpacket.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	hello, err := wire.AppendFrame(nil, &wire.Header{Op: wire.OpHello, Request: 1}, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1, StagingBytes: 1, SlotBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		c, err := seqpacket.Dial(v.Socket, patience)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		// The daemon may have closed it already.
		_ = c.Send(hello, nil)
		_ = c.Send(hello, slices.Repeat([]int{int(stray.Fd())}, seqpacket.FewDescriptors))
	}
	for _, c := range conns {
		if err := c.SetRecvTimeout(patience); err != nil {
			t.Fatal(err)
		}
		_, fds, err := c.Recv(make([]byte, wire.MaxFrame))
		if err == nil && len(fds) == wire.HelloDescriptors {
			kept++
		}
		seqpacket.CloseAll(fds)
	}
	while()
	return kept
}

// synced publishes segments until a number of them is on disk.
func (n *neighbour) synced(segments int) {
	n.t.Helper()
	for range segments {
		var stored connector.Stored
		err := patiently(func() (err error) {
			stored, err = putAt(n.model, 2048, wire.LevelSynced)
			return err
		})
		if err != nil || stored.Level != wire.LevelSynced {
			n.t.Errorf("a segment that is to be synced reached %v, %v", stored.Level, err)
			return
		}
	}
}

// putAt publishes a new segment with a level.
func putAt(m *connector.Model, tokens int, level wire.Level) (connector.Stored, error) {
	q := newSegment(tokens)
	q.Level = level
	return m.Put(context.Background(), q)
}

// So few descriptors that clients find no place: readiness reports it, and with a few more
// than the daemon needs itself some clients are served.
func TestHostileFewDescriptorsAreReported(t *testing.T) {
	disk := shortDir(t)
	v := start(t, bounds{Limits: map[int]uint64{unix.RLIMIT_NOFILE: 64}}, "-disk="+disk, "-disk-size=64MiB", "-disk-private=8MiB", "-disk-slab=4MiB", "-disk-reserve=0B")
	detail := ""
	for _, c := range v.health().Checks {
		if c.Name == "connections" && c.State == api.CheckDegraded {
			detail = c.Detail
		}
	}
	if !strings.Contains(detail, "64 descriptors") {
		t.Errorf("readiness does not report that there are few descriptors: %v", v.health().Checks)
	}
	m := registered(t, v.client(connector.Options{Name: "engine"}), modelNamed("engine"), connector.Binding{})
	if _, err := put(m, 64); err != nil {
		t.Errorf("a client with 64 descriptors: %v", err)
	}
	v.mustRun()
	report(t, "a start with 64 descriptors", "degraded: "+detail, "fewer places")
}
