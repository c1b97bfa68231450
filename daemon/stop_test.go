package daemon

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// stalledCommit is a daemon whose device stands before a commit's copy.
func stalledCommit(t *testing.T, device *gpuipctest.Device, c Config) (*running, *rawClient, *gpuipctest.Stall, uint64) {
	t.Helper()
	r := startDaemon(t, c, device)
	client := attach(t, r.Socket())
	p := testProfile(t, 1)
	client.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	id, _ := client.reserve(d, 0)
	stall := device.Stall(t, gpuipc.OpCopyDigests, 1)
	request := client.send(wire.OpCommit, client.commitRequest(id, d.layout, d.bytes))
	<-stall.Reached()
	return r, client, stall, request
}

func TestStoppingRefusesNewWorkAndLetsRunningWorkEnd(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	config := testConfig(t)
	config.DrainTimeout = patience
	r, c, stall, request := stalledCommit(t, device, config)
	r.cancel()
	eventually(t, "the daemon refuses work", func() bool { return r.server.stopping.Load() })
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

func TestWorkThatDoesNotEndInTimeIsStopped(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	config := testConfig(t)
	config.DrainTimeout = 10 * time.Millisecond
	r, c, stall, _ := stalledCommit(t, device, config)
	r.cancel()
	eventually(t, "the work's context has ended", func() bool {
		conns := r.server.list()
		return len(conns) == 1 && conns[0].ctx.Err() != nil
	})
	stall.Release()
	if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("the client reads %v", err)
	}
	r.stop()
}

func TestADeviceThatHangsDoesNotKeepTheDaemonFromEnding(t *testing.T) {
	inner, err := gpuipc.NewHost(gpuipc.HostOptions{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	config := testConfig(t)
	config.DrainTimeout = 10 * time.Millisecond
	r, c, stall, _ := stalledCommit(t, gpuipctest.Wrap(inner), config)
	if err := r.end(); !errors.Is(err, errStuck) {
		t.Errorf("the daemon ended with: %v", err)
	}
	// The process would end here; this one goes on and lets the work go, which
	// must still find its memory.
	stall.Release()
	if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("the client reads %v", err)
	}
	r.server.conns.Wait()
	r.server.queue.close()
	if err := errors.Join(r.server.watcher.stop(), r.close(), inner.Close()); err != nil {
		t.Error(err)
	}
}

func TestConnectionsTakeTurns(t *testing.T) {
	q := newQueue(5)
	a, b := &lane{}, &lane{}
	jobs := map[string]*job{}
	for _, name := range []string{"a1", "a2", "a3", "b1", "b2"} {
		jobs[name] = &job{body: []byte(name)}
		l := a
		if name[0] == 'b' {
			l = b
		}
		q.put(l, jobs[name])
	}
	if !q.take(a, jobs["a2"]) || q.take(a, jobs["a2"]) || q.take(b, jobs["a1"]) {
		t.Error("take takes what is there once, and nothing else")
	}
	var order []string
	for range 4 {
		j, _ := q.next()
		order = append(order, string(j.body))
	}
	if got := order; got[0] != "a1" || got[1] != "b1" || got[2] != "a3" || got[3] != "b2" {
		t.Errorf("order %v", order)
	}
	q.put(a, jobs["a1"])
	if !q.take(a, jobs["a1"]) || q.length() != 0 {
		t.Error("the last of a lane is not taken")
	}
	q.put(b, jobs["b1"])
	q.close()
	if j, ok := q.next(); !ok || j != jobs["b1"] {
		t.Error("a closed queue hands out what waits")
	}
	if _, ok := q.next(); ok {
		t.Error("a closed queue ends")
	}
	if q.put(a, jobs["a1"]) {
		t.Error("a closed queue takes work")
	}
}

func TestPlacesAreBounded(t *testing.T) {
	q := newQueue(2)
	for i, want := range []bool{true, true, false} {
		if q.enter() != want {
			t.Fatalf("place %d of 2: %v", i+1, !want)
		}
	}
	l, j := &lane{}, &job{}
	q.put(l, j)
	got := make(chan *job)
	go func() { j, _ := q.next(); got <- j }()
	select {
	case <-got:
		t.Fatal("a third place")
	case <-time.After(10 * time.Millisecond):
	}
	q.leave()
	if <-got != j {
		t.Error("another job")
	}
	q.put(l, j)
	q.leave()
	if q.enter() {
		t.Error("one that does not wait goes before one that does")
	}
}

func TestSlotsAreFreedWhenNobodyUsesThem(t *testing.T) {
	leakCheck(t)
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	s := r.server.list()[0].attached.Load().slots
	next := uint64(100)
	newID := func() uint64 { next++; return next }
	failed := errors.New("failed")

	x, err := s.open(0, 5000, nil, newID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(x.lease, 10, nil, newID); err == nil {
		t.Error("a slot that is being written was opened again")
	}
	s.done(x, nil)
	if _, err := s.open(x.lease, 8193, nil, newID); err == nil {
		t.Error("a slot took more than its pages")
	}
	y, err := s.read(x.lease, uint64(x.extent.Off)+8, 100)
	if err != nil || y != x {
		t.Fatal(err)
	}
	for _, off := range []uint64{uint64(x.extent.Off) + 8192 - 50, uint64(x.extent.Off) + 9000, ^uint64(0)} {
		if _, err := s.read(x.lease, off, 100); err == nil {
			t.Errorf("read at %d", off)
		}
	}
	if !s.release(x.lease) || s.release(x.lease) {
		t.Error("released once")
	}
	if _, bytes := s.held(); bytes != 8192 {
		t.Errorf("%d bytes while somebody reads", bytes)
	}
	s.doneReading(y)
	z, _ := s.open(0, 100, nil, newID)
	s.done(z, failed)
	if leases, bytes := s.held(); leases != 0 || bytes != 0 {
		t.Errorf("%d leases, %d bytes at the end", leases, bytes)
	}
	// A slot that its client had before keeps through a failure.
	w, _ := s.open(0, 100, nil, newID)
	s.done(w, nil)
	_, _ = s.open(w.lease, 100, nil, newID)
	s.done(w, failed)
	if _, err := s.read(w.lease, uint64(w.extent.Off), 8); err == nil {
		t.Error("what a failed request left was read")
	}
	_, _ = s.open(w.lease, 100, nil, newID)
	s.done(w, nil)
	v, err := s.read(w.lease, uint64(w.extent.Off), 8)
	if err != nil {
		t.Errorf("written whole again: %v", err)
	}
	if _, err := s.open(w.lease, 100, nil, newID); err == nil {
		t.Error("a slot that somebody reads was opened for writing")
	}
	if _, err := s.open(w.lease, 100, v, newID); err != nil {
		t.Errorf("by its only reader: %v", err)
	}
	s.done(w, nil)
	s.doneReading(v)
	if !s.release(w.lease) {
		t.Error("a failure took a slot that was there before")
	}
	c.close()
	r.atRest()
}
