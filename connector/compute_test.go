package connector

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

func testRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// fillArena writes random bytes into the arena of f, which only the daemon's own
// mapping could; it goes through the device.
func fillArena(t *testing.T, f *fake) []byte {
	t.Helper()
	b := make([]byte, fakeArena)
	rng := testRand(t)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	ref := gpuipc.Ref{Region: f.arena, Extents: []gpuipc.Extent{{Len: fakeArena}}}
	must(t, f.device.Store(background, ref, b))
	return b
}

func TestLeaseGivesTheBytesOfTheArena(t *testing.T) {
	f := startFake(t)
	arena := fillArena(t, f)
	m := register(t, open(t, f), Binding{})
	got, err := m.Acquire(background, make([]profile.SegmentKey, 3), AcquireOptions{Digests: true})
	must(t, err)
	for i := range got {
		if got[i].Err != nil {
			t.Fatalf("row %d: %v", i, got[i].Err)
		}
	}
	l := got[0].Lease
	if l.Begin != 3 || l.Tokens != heldTokens || l.id != 1000 {
		t.Fatalf("%+v", l)
	}
	layout := l.Layout()
	first := layout.Bytes / 2
	object := append(bytes.Clone(arena[64:64+first]), arena[1<<20:1<<20+layout.Bytes-first]...)
	joined := 0
	for i, p := range layout.Parts {
		want := object[p.Off : p.Off+p.Len]
		if !bytes.Equal(l.Part(i), want) {
			t.Errorf("part %d differs", i)
		}
		dst := make([]byte, p.Len)
		if err := l.Read(i, dst); err != nil || !bytes.Equal(dst, want) {
			t.Errorf("read of part %d: %v", i, err)
		}
		crosses := p.Off < first && p.Off+p.Len > first
		if crosses {
			joined++
		}
		if l.Whole(i) == crosses {
			t.Errorf("part %d across the border of extents: %t, whole: %t", i, crosses, l.Whole(i))
		}
	}
	if joined != 1 {
		t.Fatalf("%d parts cross the border of extents, want 1", joined)
	}
	if err := l.Verify(); err != nil {
		t.Errorf("verify: %v", err)
	}
	if err := l.Read(0, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("read into nothing: %v", err)
	}
	if l.Part(-1) != nil || l.Part(99) != nil || l.Whole(-1) || l.Whole(99) {
		t.Error("a part that does not exist")
	}
	Release(got[0].Lease, nil, got[1].Lease, got[0].Lease)
	if f.count(wire.OpRelease) != 1 {
		t.Errorf("%d release requests, want 1", f.count(wire.OpRelease))
	}
	if err := l.Verify(); !errors.Is(err, ErrGone) {
		t.Errorf("verify after release: %v", err)
	}
	if err := l.Read(0, make([]byte, layout.Parts[0].Len)); !errors.Is(err, ErrGone) {
		t.Errorf("read after release: %v", err)
	}
	got[2].Lease.Release()
}

func TestDamagedSegmentIsCorrupt(t *testing.T) {
	f := startFake(t)
	arena := fillArena(t, f)
	c := open(t, f)
	m := register(t, c, Binding{})
	got, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{Digests: true})
	must(t, err)
	defer got[0].Lease.Release()
	ref := gpuipc.Ref{Region: f.arena, Extents: []gpuipc.Extent{{Off: 64 + 100, Len: 1}}}
	must(t, f.device.Store(background, ref, []byte{arena[64+100] ^ 1}))
	l := got[0].Lease
	if err := l.Verify(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("verify: %v", err)
	}
	if err := l.Read(0, make([]byte, l.Layout().Parts[0].Len)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
	if n := c.Counters().Corrupt; n != 2 {
		t.Errorf("%d counted", n)
	}
	plain, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{})
	must(t, err)
	defer plain[0].Lease.Release()
	if err := plain[0].Lease.Verify(); !errors.Is(err, ErrInvalid) {
		t.Errorf("verify without digests: %v", err)
	}
}

func TestAcquireTellsRowsApart(t *testing.T) {
	f := startFake(t)
	layout := testProfile().SegmentLayout(heldTokens)
	f.on(wire.OpAcquire, func(r *request) {
		// Two rows fit a reply, the rest is busy; key 3 is a miss.
		m := decode[wire.AcquireRequest](r)
		n := len(m.Keys)
		reply := &wire.AcquireReply{
			Codes: make([]uint16, n), Leases: make([]uint64, n), Bytes: make([]uint64, n), Begins: make([]uint32, n),
			Tokens: make([]uint32, n), ExtentCount: make([]uint32, n), DigestCount: make([]uint32, n),
		}
		room := 2
		for i, key := range m.Keys {
			switch {
			case key[0] == 3:
				reply.Codes[i] = uint16(wire.Miss)
				continue
			case room == 0:
				reply.Codes[i] = uint16(wire.Busy)
				continue
			}
			room--
			reply.Leases[i], reply.Bytes[i], reply.Tokens[i] = uint64(key[0]), uint64(layout.Bytes), heldTokens
			reply.ExtentCount[i] = 1
			reply.ExtentOff = append(reply.ExtentOff, 4096*uint64(key[0]))
			reply.ExtentLen = append(reply.ExtentLen, uint64(layout.Bytes))
		}
		r.reply(reply)
	})
	m := register(t, open(t, f), Binding{})
	keys := []profile.SegmentKey{{1}, {2}, {3}, {4}, {5}, {6}}
	got, err := m.Acquire(background, keys, AcquireOptions{})
	must(t, err)
	var leases []*Lease
	for i, row := range got {
		if i == 2 {
			if !errors.Is(row.Err, ErrMiss) || row.Lease != nil {
				t.Errorf("key 3: %+v", row)
			}
			continue
		}
		if row.Err != nil || row.Lease.id != uint64(i+1) || row.Lease.extents[0].Off != 4096*int64(i+1) {
			t.Errorf("key %d: %+v", i+1, row)
		}
		leases = append(leases, row.Lease)
	}
	if calls := f.count(wire.OpAcquire); calls != 3 {
		t.Errorf("%d requests, want 3", calls)
	}
	Release(leases...)

	f.on(wire.OpAcquire, func(r *request) {
		n := len(decode[wire.AcquireRequest](r).Keys)
		reply := &wire.AcquireReply{
			Codes: make([]uint16, n), Leases: make([]uint64, n), Bytes: make([]uint64, n), Begins: make([]uint32, n),
			Tokens: make([]uint32, n), ExtentCount: make([]uint32, n), DigestCount: make([]uint32, n),
		}
		for i := range n {
			reply.Codes[i] = uint16(wire.Busy)
		}
		r.reply(reply)
	})
	got, err = m.Acquire(background, keys[:2], AcquireOptions{})
	if err != nil || !errors.Is(got[0].Err, ErrBusy) || !errors.Is(got[1].Err, ErrBusy) {
		t.Fatalf("%+v, %v", got, err)
	}
}

// What follows a short input in staging belongs to another span or call.
func TestInputsOfAnotherLengthAreRefused(t *testing.T) {
	f, c, m := opened(t)
	f.on(wire.OpCompose, func(r *request) {
		t.Error("the daemon was asked")
		standard(r)
	})
	for layer, sizes := range map[int][]int64{
		0:         {0, m.Profile().SeamLayout(0).Bytes - 1, m.Profile().SeamLayout(0).Bytes + 64},
		1:         {0, 64}, // keeps no recurrent state
		AllLayers: {m.Profile().SeamLayout(AllLayers).Bytes / 2},
	} {
		for _, n := range sizes {
			plan := Plan{End: 2, Spans: []Span{{Count: 1, Input: make([]byte, n)}, {Start: 1, Count: 1}}}
			if _, err := m.Compose(background, &ComposeQuery{Layer: layer, Plan: plan}); !errors.Is(err, ErrInvalid) {
				t.Errorf("layer %d, input of %d bytes: %v", layer, n, err)
			}
		}
	}
	stagingFree(t, c)
}

func TestComposeCarriesPlanAndInputs(t *testing.T) {
	f := startFake(t)
	staging := f.map_(f.staging, false)
	c := open(t, f)
	m := register(t, c, Binding{})
	got, err := m.Acquire(background, make([]profile.SegmentKey, 1), AcquireOptions{})
	must(t, err)
	defer got[0].Lease.Release()
	in := bytes.Repeat([]byte{0x5a}, int(m.Profile().SeamLayout(0).Bytes))
	f.on(wire.OpCompose, func(r *request) {
		q := decode[wire.ComposeRequest](r)
		p := q.Plan
		if q.Profile != 7 || q.Layer != 0 || p.Begin != 0 || p.End != 12 || len(p.Kinds) != 3 {
			t.Errorf("compose %+v", q)
			return
		}
		if p.Kinds[0] != wire.SpanSegment || p.Leases[0] != 1000 || p.Inputs[0] != wire.None || p.Kinds[1] != wire.SpanRecompute || p.Inputs[2] != wire.None {
			t.Errorf("plan %+v", p)
		}
		if !bytes.Equal(staging[p.Inputs[1]:][:len(in)], in) {
			t.Error("input differs")
		}
		standard(r)
	})
	plan := Plan{End: 12, Spans: []Span{{Lease: got[0].Lease, Start: 0, Count: 5}, {Start: 5, Count: 3, Input: in}, {Start: 8, Count: 4}}}
	slot, err := m.Compose(background, &ComposeQuery{Layer: 0, Plan: plan})
	must(t, err)
	if b := slot.Bytes(); len(b) != 128 {
		t.Fatalf("%d bytes", len(b))
	}
	stagingFree(t, c)

	// The same slot again, then from it.
	f.on(wire.OpCompose, func(r *request) {
		q := decode[wire.ComposeRequest](r)
		if q.Into != 900 || q.From != wire.FromSlot || q.FromLease != 900 || q.FromOff != 64+16 {
			t.Errorf("compose %+v", q)
		}
		standard(r)
	})
	again, err := m.Compose(background, &ComposeQuery{Plan: plan, Into: slot, From: From{Slot: slot, SlotOff: 16}})
	if err != nil || again != slot {
		t.Fatalf("%p %p, %v", again, slot, err)
	}
	slot.Release()
	if _, err := m.Compose(background, &ComposeQuery{Into: slot}); !errors.Is(err, ErrGone) {
		t.Errorf("into a released slot: %v", err)
	}
}

func TestPlanChecks(t *testing.T) {
	_, _, m := opened(t)
	for name, q := range map[string]ComposeQuery{
		"backwards":    {Plan: Plan{Begin: 5, End: 4}},
		"negative":     {Plan: Plan{Begin: -1, End: 4}},
		"span outside": {Plan: Plan{End: 4, Spans: []Span{{Start: 2, Count: 3}}}},
		"span before":  {Plan: Plan{Begin: 3, End: 4, Spans: []Span{{Start: 2, Count: 2}}}},
		"count":        {Plan: Plan{End: 4, Spans: []Span{{Count: -1}}}},
		"spans":        {Plan: Plan{End: 4, Spans: make([]Span, wire.MaxSpans+1)}},
		"two froms":    {From: From{Slot: &Slot{}, Checkpoint: &Checkpoint{}}},
		"slot offset":  {From: From{Slot: &Slot{n: 5}, SlotOff: 6}},
	} {
		if _, err := m.Compose(background, &q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Rotate(background, &RotateQuery{Blocks: []uint32{1}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("blocks without memory: %v", err)
	}
}

func TestSlotThatMayStillBeWrittenHoldsNothing(t *testing.T) {
	f, _, m := opened(t)
	slot, err := m.Compose(background, &ComposeQuery{})
	must(t, err)
	release := f.hold(wire.OpCompose)
	if _, err := m.Compose(brief(t), &ComposeQuery{Into: slot}); !errors.Is(err, ErrLate) {
		t.Fatalf("got %v", err)
	}
	if slot.Bytes() != nil {
		t.Error("bytes of a slot that may be written to")
	}
	if _, err := m.Compose(background, &ComposeQuery{Into: slot}); !errors.Is(err, ErrGone) {
		t.Errorf("into it again: %v", err)
	}
	release()
	slot.Release()
	f.await(wire.OpRelease)
}

func TestSlotOutsideIsRefused(t *testing.T) {
	for name, reply := range map[string]wire.ComposeReply{
		"beyond": {Lease: 1, Off: fakeSlots - 64, Bytes: 128},
		"huge":   {Lease: 1, Off: 0, Bytes: 1<<64 - 1},
		"wraps":  {Lease: 1, Off: 1<<64 - 64, Bytes: 128},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.on(wire.OpCompose, func(r *request) { r.reply(&reply) })
			m := register(t, open(t, f), Binding{})
			if _, err := m.Compose(background, &ComposeQuery{}); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// engineMemory is a memfd as an engine would share it.
func engineMemory(t *testing.T) *Memory {
	t.Helper()
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	f := os.NewFile(uintptr(fd), "engine")
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(1<<16))
	return &Memory{File: f, Bytes: 1 << 16, Layers: []wire.MemoryLayer{{Layer: 1, BlockStride: 4096}}}
}

func TestEngineMemoryIsRegisteredAgain(t *testing.T) {
	f := startFake(t)
	sizes := make(chan int64, 10)
	f.on(wire.OpProfile, func(r *request) {
		var st unix.Stat_t
		if len(r.fds) != 1 || unix.Fstat(r.fds[0], &st) != nil {
			t.Errorf("%d descriptors", len(r.fds))
		}
		m := decode[wire.ProfileRequest](r)
		if m.MemoryBytes != 1<<16 || len(m.Memory) != 1 || m.Memory[0].BlockStride != 4096 {
			t.Errorf("memory %+v", m.Memory)
		}
		sizes <- st.Size
		standard(r)
	})
	c := open(t, f)
	memory := engineMemory(t)
	m := register(t, c, Binding{Memory: memory})
	memory.File.Close() // the client has its own
	if n := <-sizes; n != 1<<16 {
		t.Fatalf("descriptor of %d bytes", n)
	}
	f.restart()
	waitLost(t, c, 1)
	waitReady(t, m)
	if n := <-sizes; n != 1<<16 {
		t.Fatalf("descriptor of %d bytes after the restart", n)
	}
	slot, err := m.Rotate(background, &RotateQuery{Blocks: []uint32{0, 1}, Plan: Plan{End: 4}})
	if slot != nil || err != nil {
		t.Fatalf("%v, %v", slot, err)
	}
}

// givenUp starts an Assemble into engine memory that gets no answer, and returns
// the pending write.
func givenUp(t *testing.T, f *fake, c *Client) *PendingWrite {
	t.Helper()
	m := register(t, c, Binding{Memory: engineMemory(t)})
	_, err := m.Assemble(background, &RotateQuery{Blocks: []uint32{0}, Plan: Plan{End: 1}})
	var p *PendingWrite
	if !errors.As(err, &p) {
		t.Fatalf("got %v", err)
	}
	return p
}

func stillPending(t *testing.T, p *PendingWrite) {
	t.Helper()
	ended, end := context.WithCancel(background)
	end()
	if err := p.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("the write is over: %v", err)
	}
}

func short(o *Options) { o.Timeouts.Transfer = 20 * time.Millisecond }

func TestPendingWriteEndsWhenCancelIsAcknowledged(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpAssemble, silence)
	acknowledge := f.hold(wire.OpCancel)
	p := givenUp(t, f, open(t, f, short))
	if !errors.Is(p, ErrLate) {
		t.Errorf("got %v", p)
	}
	f.await(wire.OpCancel)
	stillPending(t, p)
	acknowledge()
	must(t, p.Wait(background))
}

func TestPendingWriteEndsWithItsOwnReply(t *testing.T) {
	f := startFake(t)
	answer := f.hold(wire.OpAssemble)
	f.on(wire.OpCancel, silence)
	p := givenUp(t, f, open(t, f, short))
	f.await(wire.OpCancel)
	stillPending(t, p)
	answer()
	must(t, p.Wait(background))
}

func TestPendingWriteOutlastsARefusedCancel(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpAssemble, silence)
	f.on(wire.OpCancel, refuse(wire.Late, "still draining"))
	p := givenUp(t, f, open(t, f, short))
	f.await(wire.OpCancel)
	f.await(wire.OpCancel)
	stillPending(t, p)
	f.on(wire.OpCancel, nil)
	must(t, p.Wait(background))
}

func TestPendingWriteEndsWithTheDaemon(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpAssemble, silence)
	f.on(wire.OpCancel, silence)
	p := givenUp(t, f, open(t, f, short))
	f.await(wire.OpCancel)
	stillPending(t, p)
	f.stop()
	must(t, p.Wait(background))
}

// TestOwnCloseProvesNothing: garbage makes the client leave the connection while
// a write is on its way. Only the daemon's end of file settles it.
func TestOwnCloseProvesNothing(t *testing.T) {
	f := startFake(t)
	c := open(t, f, func(o *Options) { o.Timeouts.Transfer = 30 * time.Second })
	m := register(t, c, Binding{Memory: engineMemory(t)})
	linger, stop := make(chan struct{}), make(chan struct{})
	f.on(wire.OpAssemble, func(r *request) {
		r.send([]byte("garbage"))
		close(linger)
		<-stop // busy: the end of the connection is not noticed yet
	})
	errs := make(chan error, 1)
	go func() {
		_, err := m.Assemble(background, &RotateQuery{Blocks: []uint32{0}, Plan: Plan{End: 1}})
		errs <- err
	}()
	<-linger
	var p *PendingWrite
	if err := <-errs; !errors.As(err, &p) || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	waitReady(t, m) // attached again, over another connection
	stillPending(t, p)
	close(stop)
	must(t, p.Wait(background))
}

func TestCloseWaitsForEngineMemory(t *testing.T) {
	f := startFake(t)
	f.on(wire.OpCancel, silence)
	c := open(t, f, short)
	block := make(chan struct{})
	f.on(wire.OpAssemble, func(*request) { <-block })
	p := givenUp(t, f, c)
	within(t, 20*time.Millisecond, func() { c.Close() })
	if err := p.Wait(background); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	close(block)
}
