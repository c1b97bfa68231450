package daemon

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// gate holds up whoever passes while it is shut.
type gate struct {
	mu      sync.Mutex
	shut    chan struct{} // nil = open
	waiting chan struct{} // one for each who has come to the shut gate
}

func newGate() *gate { return &gate{waiting: make(chan struct{}, 1024)} }

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut == nil {
		return nil
	}
	g.waiting <- struct{}{}
	select {
	case <-shut:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await waits until somebody stands before the gate.
func (g *gate) await(t testing.TB) {
	t.Helper()
	select {
	case <-g.waiting:
	case <-time.After(patience):
		t.Fatal("nobody came to the gate")
	}
}

// slowDisk is the disk tier behind two gates.
type slowDisk struct {
	tier.Tier
	reads, writes *gate
}

func (s *slowDisk) Read(ctx context.Context, e *tier.Entry, dst []gpuipc.Ref) (*tier.Content, error) {
	if err := s.reads.pass(ctx); err != nil {
		return nil, err
	}
	return s.Tier.Read(ctx, e, dst)
}

func (s *slowDisk) Admit(o *tier.Object, room int64) (tier.Write, error) {
	w, err := s.Tier.Admit(o, room)
	if err != nil {
		return nil, err
	}
	return slowWrite{w, s.writes}, nil
}

type slowWrite struct {
	tier.Write
	gate *gate
}

func (w slowWrite) Start(level tier.Level, done func(tier.Level, error)) {
	go func() {
		_ = w.gate.pass(context.Background())
		w.Write.Start(level, done)
	}()
}

// slow is a daemon with one worker and a disk behind gates.
type slow struct {
	*running
	disk *slowDisk
	c    *rawClient
	p    *profile.Profile
}

func startSlow(t *testing.T, change func(*settings.Config)) *slow {
	t.Helper()
	config := withDisk(t)
	config.Workers = 1
	config.RequestTimeout, config.MaxRequestTimeout = patience, 2*patience
	if change != nil {
		change(&config)
	}
	s := &slow{disk: &slowDisk{reads: newGate(), writes: newGate()}, p: testProfile(1)}
	s.running = startParts(t, config, Parts{Lower: func(below tier.Tier) tier.Tier {
		s.disk.Tier = below
		return s.disk
	}})
	t.Cleanup(func() { // before the daemon is stopped
		s.disk.reads.open()
		s.disk.writes.open()
	})
	s.c = attach(t, s.Socket())
	s.c.register(s.p)
	return s
}

func (s *slow) document(seed uint64) *document {
	return newDocument(s.p, nil, seed, 512, profile.RoleFirst)
}

// onDisk publishes a document and has it leave memory.
func (s *slow) onDisk(seed uint64) *document {
	s.t.Helper()
	d := s.document(seed)
	if level := s.c.publishAt(d, wire.LevelLogged); level != wire.LevelLogged {
		s.t.Fatalf("reached %v", level)
	}
	filler := seed << 32
	eventually(s.t, "the document is on disk only", func() bool {
		if m := s.c.match(d.key); m.Tier[0] == wire.TierDisk {
			return true
		}
		filler++
		s.c.publishAt(s.document(filler), wire.LevelLogged)
		return false
	})
	return d
}

// stopWrites closes the gate behind the last write that is under way, so that the
// next one that comes to it is of what the test does next.
func (s *slow) stopWrites() {
	s.t.Helper()
	s.disk.writes.open()
	eventually(s.t, "nothing is being written", func() bool { return s.store.Counters().Writing == 0 })
	for len(s.disk.writes.waiting) > 0 {
		<-s.disk.writes.waiting
	}
	s.disk.writes.close()
}

// quick shows that work which needs no disk runs at once, although there is only
// one worker.
func (s *slow) quick(seed uint64) {
	s.t.Helper()
	d := s.document(seed)
	if level := s.c.publishAt(d, wire.LevelMemory); level != wire.LevelMemory {
		s.t.Errorf("reached %v", level)
	}
	s.c.release(s.c.lease(d))
}

// small makes memory hold a few documents only.
func small(c *settings.Config) {
	c.Arena, c.Private, c.Eviction = settings.MiB, 256*settings.KiB, "lru" // so that what was not used leaves soon
}

// What waits for a disk while its profile is switched off is not served.
func TestASwitchReachesRequestsThatWait(t *testing.T) {
	leakCheck(t)
	for name, all := range map[string]uint8{"each": 0, "all or none": 1} {
		t.Run(name, func(t *testing.T) {
			s := startSlow(t, small)
			d, held := s.onDisk(1), s.document(2)
			s.c.publish(held)
			s.disk.reads.close()
			request := s.c.send(wire.OpAcquire, &wire.AcquireRequest{Profile: s.c.profile, All: all, Keys: [][32]byte{held.key, d.key}})
			s.disk.reads.await(t)
			s.c.report(wire.ReportRequest{Compared: 1, Failed: 1, Worst: 1, Off: 1})
			s.disk.reads.open()
			code, body, _ := s.c.await(request)
			var r wire.AcquireReply
			if code != wire.OK || r.Decode(body) != nil {
				t.Fatalf("%v: %s", code, wire.ErrorText(body))
			}
			if wire.Code(r.Codes[0]) != wire.Miss || wire.Code(r.Codes[1]) != wire.Miss || r.Leases[0] != 0 || r.Leases[1] != 0 {
				t.Errorf("rows are answered %d with leases %d", r.Codes, r.Leases)
			}
			s.c.close()
			s.atRest()
		})
	}
}

func TestARequestThatIsCancelledHoldsNothing(t *testing.T) {
	leakCheck(t)
	for _, what := range []string{"acquire", "all or none", "load"} {
		t.Run(what, func(t *testing.T) {
			s := startSlow(t, small)
			d, held := s.onDisk(1), s.document(2)
			s.c.publish(held)
			m := &wire.AcquireRequest{Profile: s.c.profile, Keys: [][32]byte{held.key, d.key}}
			op, request, reply := wire.OpAcquire, wire.Message(m), wire.Message(&wire.AcquireReply{})
			switch what {
			case "all or none":
				m.All = 1
			case "load":
				op, request, reply = wire.OpLoad, &wire.LoadRequest{Profile: s.c.profile, Accept: wire.AcceptExact, Hash: s.checkpointOnDisk()}, &wire.LoadReply{}
			}
			s.disk.reads.close()
			sent := s.c.send(op, request)
			s.disk.reads.await(t)
			s.quick(3)
			var stopped wire.CancelReply
			s.c.call(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{sent}}, &stopped)
			if code, body, _ := s.c.await(sent); code != wire.Canceled || stopped.Outcomes[0] != wire.CancelStopped {
				t.Errorf("%v: %s, outcome %d", code, wire.ErrorText(body), stopped.Outcomes[0])
			}
			if n := s.server.Connections()[0].Leases; n != 0 {
				t.Errorf("%d leases", n)
			}
			// The read goes on for whoever asks next.
			s.disk.reads.open()
			s.c.call(op, request, reply)
			switch r := reply.(type) {
			case *wire.AcquireReply:
				s.c.release(r.Leases...)
			case *wire.LoadReply:
				s.c.release(r.Lease)
			}
			s.c.close()
			s.atRest()
		})
	}
}

func TestWhatTheDiskDoesNotBringInTimeIsAMiss(t *testing.T) {
	leakCheck(t)
	for name, bound := range map[string]struct{ promote, deadline time.Duration }{
		"promote-timeout": {20 * time.Millisecond, patience},
		"the deadline":    {patience, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSlow(t, func(c *settings.Config) { small(c); c.PromoteTimeout = bound.promote })
			point := s.checkpointOnDisk()
			d, held := s.onDisk(1), s.document(2)
			s.c.publish(held)
			s.disk.reads.close()
			// On a machine that stands still for the eighth of a deadline that is kept
			// for the answer, the answer is late: asked again.
			within := func(op wire.Op, m wire.Message) (wire.Code, []byte) {
				for {
					began := time.Now()
					h := s.c.header(op)
					h.Deadline = uint32(bound.deadline / time.Microsecond)
					s.c.sendHeader(&h, m)
					code, body, _ := s.c.await(h.Request)
					if code != wire.Late || time.Since(began) < bound.deadline {
						return code, body
					}
				}
			}
			var r wire.AcquireReply
			code, body := within(wire.OpAcquire, &wire.AcquireRequest{Profile: s.c.profile, Keys: [][32]byte{held.key, d.key}})
			if code != wire.OK || r.Decode(body) != nil || r.Codes[0] != uint16(wire.OK) || r.Codes[1] != uint16(wire.Miss) {
				t.Errorf("%v: codes %v", code, r.Codes)
			}
			if code, body := within(wire.OpLoad, &wire.LoadRequest{Profile: s.c.profile, Accept: wire.AcceptExact, Hash: point}); code != wire.Miss {
				t.Errorf("load: %v: %s", code, wire.ErrorText(body))
			}
			s.disk.reads.open()
			eventually(t, "both are read all the same", func() bool {
				var m wire.MatchReply
				s.c.call(wire.OpMatch, &wire.MatchRequest{Profile: s.c.profile, Accept: wire.AcceptExact, Positions: []uint32{32}, Prefixes: [][32]byte{point}, Keys: [][32]byte{d.key}}, &m)
				return m.Tier[0] == wire.TierDRAM && m.PrefixTier == wire.TierDRAM
			})
			s.c.release(r.Leases[0])
			s.c.close()
			s.atRest()
		})
	}
}

// checkpointOnDisk saves a checkpoint of 32 tokens and has it leave memory.
func (s *slow) checkpointOnDisk() [32]byte {
	s.t.Helper()
	save := func(seed uint64) [32]byte {
		d := newDocument(s.p, nil, seed, 32, profile.RoleFirst)
		hash := s.p.PrefixHashes(nil, 16, d.tokens, []int{32})[0]
		m := &wire.SaveRequest{Profile: s.c.profile, Kind: wire.AcceptExact, Hashes: [][32]byte{hash}, Tokens: []uint32{32}, Parents: make([][32]byte, 1)}
		var saved wire.ReserveReply
		s.c.call(wire.OpSave, m, &saved)
		l := s.p.CheckpointLayout(32)
		commit := s.c.commitRequest(saved.Reservations[0], l, make([]byte, l.Bytes))
		commit.Level = uint8(wire.LevelLogged)
		var r wire.CommitReply
		s.c.call(wire.OpCommit, commit, &r)
		return hash
	}
	hash := save(1000)
	filler := uint64(1000)
	eventually(s.t, "the checkpoint is on disk only", func() bool {
		var m wire.MatchReply
		s.c.call(wire.OpMatch, &wire.MatchRequest{Profile: s.c.profile, Accept: wire.AcceptExact, Positions: []uint32{32}, Prefixes: [][32]byte{hash}}, &m)
		filler++
		save(filler)
		return m.PrefixTier == wire.TierDisk
	})
	return hash
}

func TestACommitWaitsForItsLevelAndHoldsNobodyUp(t *testing.T) {
	s := startSlow(t, nil)
	for i, end := range []string{"written", "cancelled", "late", "disconnected"} {
		t.Run(end, func(t *testing.T) {
			s.stopWrites()
			d := s.document(uint64(10 * (i + 1)))
			id, _ := s.c.reserve(d, 0)
			m := s.c.commitRequest(id, d.layout, d.bytes)
			m.Level = uint8(wire.LevelSynced)
			h := s.c.header(wire.OpCommit)
			if end == "late" {
				h.Deadline = uint32(2 * time.Second / time.Microsecond)
			}
			s.c.sendHeader(&h, m)
			s.disk.writes.await(t)
			if end != "late" {
				s.quick(uint64(10*(i+1) + 1))
			}
			// It can be looked up before it is safe.
			if r := s.c.match(d.key); r.Status[0] != wire.StatusHit {
				t.Errorf("while it is written a match answers status %d, reason %d", r.Status[0], r.Reason[0])
			}
			want := wire.LevelMemory
			switch end {
			case "written":
				want = wire.LevelSynced
				s.disk.writes.open()
			case "cancelled":
				var stopped wire.CancelReply
				s.c.call(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{h.Request}}, &stopped)
				if stopped.Outcomes[0] != wire.CancelDrained {
					t.Errorf("outcome %d", stopped.Outcomes[0])
				}
			case "disconnected":
				s.c.close()
				s.atRest()
				s.c = attach(t, s.Socket())
				s.c.register(s.p)
				s.c.release(s.c.lease(d))
				return
			}
			code, body, _ := s.c.await(h.Request)
			var r wire.CommitReply
			if code != wire.OK || r.Decode(body) != nil {
				t.Fatalf("%v: %s", code, wire.ErrorText(body))
			}
			n := len(r.Codes) - 1
			if r.Published[n] != 1 || wire.Level(r.Levels[n]) != want {
				t.Errorf("published %d at %v, want %v", r.Published[n], wire.Level(r.Levels[n]), want)
			}
		})
	}
	s.disk.writes.open()
	s.c.close()
	s.atRest()
}

// Waits count as requests in flight; beyond the bound what would wait is a miss.
func TestWaitsAreBounded(t *testing.T) {
	const most = 4
	s := startSlow(t, func(c *settings.Config) { small(c); c.MaxInFlight = most })
	d, held := s.onDisk(1), s.document(2)
	s.c.publish(held)
	s.disk.reads.close()
	m := &wire.AcquireRequest{Profile: s.c.profile, Keys: [][32]byte{held.key, d.key, {7}}}
	var waiting []uint64
	for range most {
		waiting = append(waiting, s.c.send(wire.OpAcquire, m))
	}
	var r wire.AcquireReply
	s.c.call(wire.OpAcquire, m, &r)
	if !slices.Equal(r.Codes, []uint16{uint16(wire.OK), uint16(wire.Miss), uint16(wire.Miss)}) {
		t.Errorf("one too many: rows are answered %d", r.Codes)
	}
	s.c.release(r.Leases[0])
	if n := s.server.Load().Waiting; n != most {
		t.Errorf("%d wait, want %d", n, most)
	}
	if n := s.server.Connections()[0].InFlight; n != most {
		t.Errorf("%d in flight, want %d", n, most)
	}
	s.disk.reads.open()
	for _, request := range waiting {
		code, body, _ := s.c.await(request)
		if code != wire.OK || r.Decode(body) != nil || !slices.Equal(r.Codes, []uint16{uint16(wire.OK), uint16(wire.OK), uint16(wire.Miss)}) || int64(r.Bytes[1]) != d.layout.Bytes {
			t.Fatalf("%v: rows are answered %d with %d bytes", code, r.Codes, r.Bytes)
		}
		s.c.release(r.Leases[:2]...)
	}
	s.c.close()
	s.atRest()
}

// A write that hangs in the kernel does not keep the process.
func TestAStopLeavesADiskThatHangs(t *testing.T) {
	leakChecked.Store(t, true) // it leaves what the disk reads from
	before := runtime.NumGoroutine()
	s := startSlow(t, func(c *settings.Config) { c.DrainTimeout = 50 * time.Millisecond })
	s.disk.writes.close()
	s.c.publish(s.document(1))
	s.disk.writes.await(t)
	if err := s.end(); !errors.Is(err, server.ErrStuck) {
		t.Errorf("ended with %v", err)
	}
	s.disk.writes.open()
	// Closed it is only where that did not take longer than a drain.
	if !endsWithin(time.Minute, s.Daemon.diskRun.Wait) {
		t.Error("what was left does not end")
	}
	eventually(t, "what is left of the stop has logged and ended", func() bool { return runtime.NumGoroutine() <= before })
}

// A daemon that stops does not wait for a disk longer than it waits for work.
func TestAStopEndsWaits(t *testing.T) {
	s := startSlow(t, func(c *settings.Config) { small(c); c.DrainTimeout = 2 * time.Second })
	d := s.onDisk(1)
	s.disk.reads.close()
	s.c.send(wire.OpAcquire, &wire.AcquireRequest{Profile: s.c.profile, Keys: [][32]byte{d.key}})
	s.disk.reads.await(t)
	s.stop()
}
