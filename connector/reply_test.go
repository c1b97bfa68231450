package connector

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// deadRegistration is a registration whose attachment has ended, with regions of
// one page: enough to read replies.
func deadRegistration(t testing.TB) (*Model, *registration) {
	t.Helper()
	region := func() *gpuipc.Mapping {
		fd, err := unix.MemfdCreate("reply", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, err)
		f := os.NewFile(uintptr(fd), "reply")
		must(t, f.Truncate(1<<16))
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		m, err := gpuipc.Map(gpuipc.Handle{File: f, Bytes: 1 << 16}, false)
		must(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	c := &Client{}
	a, err := link.NewEnded(region(), region())
	must(t, err)
	m := &Model{client: c, profile: testProfile()}
	return m, &registration{a: a}
}

// FuzzReplies feeds replies that decode to the code that believes them: whatever
// a daemon says, nothing may panic or reach outside the mappings.
func FuzzReplies(f *testing.F) {
	layout := testProfile().SegmentLayout(heldTokens)
	f.Add(uint8(wire.OpAcquire), (&wire.AcquireReply{
		Codes: []uint16{0}, Leases: []uint64{1}, Bytes: []uint64{uint64(layout.Bytes)}, Begins: []uint32{0}, Tokens: []uint32{heldTokens},
		ExtentCount: []uint32{2}, ExtentOff: []uint64{64, 8192}, ExtentLen: []uint64{100, uint64(layout.Bytes)}, DigestCount: []uint32{0},
	}).Append(nil))
	f.Add(uint8(wire.OpAcquire), (&wire.AcquireReply{ // whose extents overflow
		Codes: []uint16{0}, Leases: []uint64{1}, Bytes: []uint64{uint64(layout.Bytes)}, Begins: []uint32{0}, Tokens: []uint32{heldTokens},
		ExtentCount: []uint32{2}, ExtentOff: []uint64{64, 1 << 63}, ExtentLen: []uint64{100, 1 << 63}, DigestCount: []uint32{0},
	}).Append(nil))
	f.Add(uint8(wire.OpLoad), (&wire.LoadReply{
		Lease: 7, Kind: 1, Tokens: 3, NodeBegin: []uint32{0}, NodeEnd: []uint32{3}, ExtentCount: []uint32{1},
		ExtentOff: []uint64{0}, ExtentLen: []uint64{uint64(testProfile().CheckpointLayout(3).Bytes)}, DigestCount: []uint32{0},
	}).Append(nil))
	f.Add(uint8(wire.OpRotate), (&wire.RotateReply{Lease: 1, Off: 64, Bytes: 1 << 15, Rows: 5}).Append(nil))
	f.Add(uint8(wire.OpAdvise), goodAdvice().Append(nil))
	m, r := deadRegistration(f)
	f.Fuzz(func(t *testing.T, op uint8, body []byte) {
		switch wire.Op(op) {
		case wire.OpAcquire:
			var reply wire.AcquireReply
			if reply.Decode(body) != nil {
				return
			}
			now := make([]int, len(reply.Codes))
			for i := range now {
				now[i] = i
			}
			out := make([]Acquired, len(now))
			_, _ = m.leases(r, &reply, time.Time{}, now, nil, out)
			for _, row := range out {
				if row.Lease != nil {
					touch(&row.Lease.object)
					row.Lease.Release()
				}
			}
		case wire.OpLoad:
			var reply wire.LoadReply
			if reply.Decode(body) != nil {
				return
			}
			if c, err := m.checkpoint(r, &reply); err == nil {
				for i := range c.Nodes {
					touch(&c.Nodes[i].object)
				}
				_ = c.Last()
				c.Release()
			}
		case wire.OpAdvise:
			var reply wire.AdviseReply
			if reply.Decode(body) != nil {
				return
			}
			a, err := adviceOf(r.a, &reply, 100, len(reply.SegmentAdmit))
			last := 0
			for _, p := range a.Checkpoints {
				if p.Tokens <= last || p.Tokens > 100 || err != nil {
					t.Fatalf("checkpoint at %d after %d, %v", p.Tokens, last, err)
				}
				last = p.Tokens
			}
		case wire.OpRotate:
			var reply wire.RotateReply
			if reply.Decode(body) != nil {
				return
			}
			if s, err := r.slot(wire.OpRotate, &reply, nil, false); err == nil && s != nil {
				for _, b := range s.Bytes() {
					_ = b
				}
				s.Release()
			}
		}
		link.Granted(wire.Op(op), body)
		if n := r.a.Users(); n != 1 {
			t.Fatalf("%d users of the mappings left", n)
		}
	})
}

// touch reads every byte an object claims to have.
func touch(o *object) {
	for i := range o.layout.Parts {
		sum := byte(0)
		for _, b := range o.Part(i) {
			sum += b
		}
		_ = sum
		_ = o.Read(i, make([]byte, o.layout.Parts[i].Len))
	}
	if o.digests != nil {
		_ = o.Verify()
	}
}

func TestExtentsAreHeldToTheirRegion(t *testing.T) {
	const region = 4096
	rows := []struct {
		name     string
		off, len []uint64
		bytes    uint64
		ok       bool
	}{
		{"one", []uint64{0}, []uint64{4096}, 4096, true},
		{"cut", []uint64{64}, []uint64{1024}, 1000, true},
		{"spare", []uint64{64, 0}, []uint64{1024, 64}, 1024, true},
		{"nothing of nothing", nil, nil, 0, true},
		{"short", []uint64{0}, []uint64{64}, 65, false},
		{"empty extent", []uint64{0, 64}, []uint64{0, 64}, 64, false},
		{"over the end", []uint64{4095}, []uint64{2}, 2, false},
		{"far", []uint64{1 << 63}, []uint64{64}, 64, false},
		{"wraps", []uint64{1<<64 - 1}, []uint64{2}, 2, false},
		{"huge", []uint64{0}, []uint64{1<<64 - 1}, 64, false},
	}
	for _, row := range rows {
		e, err := newExtents(row.off, row.len, row.bytes, region, false)
		if (err == nil) != row.ok {
			t.Errorf("%s: %v, %v", row.name, e, err)
		}
	}
	hole := []uint64{64, wire.None, 128}
	if _, err := newExtents(hole, []uint64{10, 20, 10}, 40, region, false); err == nil {
		t.Error("a hole where there may be none")
	}
	holed, err := newExtents(hole, []uint64{10, 20, 10}, 40, region, true)
	if err != nil || !holed.held(0, 10) || !holed.held(30, 10) || holed.held(9, 2) || holed.held(12, 3) || holed.held(29, 1) || holed.held(0, 40) {
		t.Errorf("%v, %v", holed, err)
	}
	if _, err := newExtents(hole, []uint64{10, 1 << 63, 10}, 40, region, true); err == nil {
		t.Error("a hole longer than the object")
	}
	e := extents{{Off: 100, Len: 10}, {Off: 0, Len: 5}}
	if _, ok := e.view(make([]byte, 200), 8, 3); ok {
		t.Error("a view across two extents")
	}
	if v, ok := e.view(make([]byte, 200), 10, 5); !ok || len(v) != 5 {
		t.Error("no view of the second extent")
	}
	if v, ok := e.view(nil, 15, 0); !ok || len(v) != 0 {
		t.Error("no view of nothing at the end")
	}
}
