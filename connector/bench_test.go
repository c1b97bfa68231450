package connector

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// benchServer makes the test binary a server in a process of its own, as a
// daemon is: two ends in one process would measure Go's scheduler.
const benchServer = "CONNECTOR_BENCH_SERVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(benchServer); dir != "" {
		serveBench(dir)
		return
	}
	if path := os.Getenv(fakeProcess); path != "" {
		serveFake(path)
	}
	os.Exit(m.Run())
}

// serveBench answers on dir/spliced with the work of a codec and nothing else,
// and on dir/echo with a reply of the same size and not even that.
func serveBench(dir string) {
	device, err := gpuipc.Open(gpuipc.Options{})
	if err != nil {
		panic(err)
	}
	b := &benchDaemon{}
	for i, spec := range []gpuipc.RegionSpec{
		{Bytes: fakeArena, Access: gpuipc.ClientReads}, {Bytes: fakeSlots, Access: gpuipc.ClientReads}, {Bytes: fakeStaging, Access: gpuipc.ClientWrites},
	} {
		spec.Name, spec.Huge = "bench", gpuipc.HugeNever
		region, err := device.NewRegion(spec)
		if err != nil {
			panic(err)
		}
		h, err := region.Export()
		if err != nil {
			panic(err)
		}
		b.files[i] = h.File
	}
	for name, serve := range map[string]func(*seqpacket.Conn){"echo": echoBench, "spliced": b.serve} {
		l, err := seqpacket.Listen(filepath.Join(dir, name), 0o600, 8)
		if err != nil {
			panic(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1)) // until the benchmark closes its end
}

// benchReply is what a match reply of n keys takes.
func benchReply(n int) int {
	m := benchMatch(n)
	frame, _ := wire.AppendFrame(nil, &wire.Header{Op: wire.OpMatch}, &m)
	return len(frame)
}

func benchMatch(n int) wire.MatchReply {
	return wire.MatchReply{Status: slices.Repeat([]uint8{wire.StatusHit}, n), Tier: make([]uint8, n), Reason: make([]uint8, n), Tokens: make([]uint32, n)}
}

func echoBench(c *seqpacket.Conn) {
	runtime.LockOSThread()
	buf := make([]byte, wire.MaxFrame)
	for {
		n, _, err := c.Recv(buf)
		if err != nil {
			return
		}
		keys := (n - wire.HeaderBytes) / 32
		if c.Send(buf[:min(n, benchReply(keys))], nil) != nil {
			return
		}
	}
}

type benchDaemon struct{ files [3]*os.File }

func (b *benchDaemon) serve(c *seqpacket.Conn) {
	runtime.LockOSThread()
	buf, out := make([]byte, wire.MaxFrame), make([]byte, 0, wire.MaxFrame)
	var q wire.MatchRequest
	reply := benchMatch(wire.MaxKeys)
	for {
		n, _, err := c.Recv(buf)
		if err != nil {
			return
		}
		h, body, err := wire.ParseHeader(buf[:n])
		if err != nil {
			panic(err)
		}
		h.Kind, h.Epoch = wire.Reply, 5
		var m wire.Message
		var fds []int
		switch h.Op {
		case wire.OpHello:
			h.Epoch = 0
			for _, f := range b.files {
				fds = append(fds, int(f.Fd()))
			}
			m = &wire.HelloReply{
				Version: 1, BootEpoch: 5, MaxInFlight: 64, Tenants: make([]wire.TenantGrant, 1),
				ArenaBytes: fakeArena, SlotBytes: fakeSlots, StagingBytes: fakeStaging,
			}
		case wire.OpProfile:
			var q wire.ProfileRequest
			if err := q.Decode(body); err != nil {
				panic(err)
			}
			p, err := profile.Parse(q.Identity)
			if err != nil {
				panic(err)
			}
			m = &wire.ProfileReply{Profile: 1, Fingerprint: p.Fingerprint()}
		case wire.OpMatch:
			if err := q.Decode(body); err != nil {
				panic(err)
			}
			k := len(q.Keys)
			m = &wire.MatchReply{Status: reply.Status[:k], Tier: reply.Tier[:k], Reason: reply.Reason[:k], Tokens: reply.Tokens[:k]}
		}
		if out, err = wire.AppendFrame(out[:0], &h, m); err != nil {
			panic(err)
		}
		if c.Send(out, fds) != nil {
			return
		}
	}
}

// startBench returns the directory of a server's sockets.
func startBench(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	if _, err := out.Read(make([]byte, 5)); err != nil {
		b.Fatal(err)
	}
	return dir
}

// BenchmarkMatch is a whole lookup beside its floor, an echo of as many bytes
// over the same kind of socket between the same processes.
func BenchmarkMatch(b *testing.B) {
	for _, keys := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("echo/keys=%d", keys), func(b *testing.B) { benchEcho(b, keys) })
		b.Run(fmt.Sprintf("client/keys=%d", keys), func(b *testing.B) { benchLookup(b, keys) })
	}
}

func benchEcho(b *testing.B, keys int) {
	c, err := seqpacket.Dial(filepath.Join(startBench(b), "echo"), time.Second)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	frame, err := wire.AppendFrame(nil, &wire.Header{Op: wire.OpMatch}, &wire.MatchRequest{Keys: make([][32]byte, keys)})
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, wire.MaxFrame)
	percentiles(b, func() error {
		if err := c.Send(frame, nil); err != nil {
			return err
		}
		_, _, err := c.Recv(buf)
		return err
	})
}

func benchLookup(b *testing.B, keys int) {
	c, err := Open(Options{Socket: filepath.Join(startBench(b), "spliced"), Timeouts: Timeouts{Lookup: time.Minute}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	m, err := c.Register(testProfile(), Binding{})
	if err != nil {
		b.Fatal(err)
	}
	var found Found
	q := MatchQuery{Keys: make([]profile.SegmentKey, keys)}
	percentiles(b, func() error { return m.Match(background, &q, &found) })
}

// percentiles reports the median and the 99th percentile beside the mean.
func percentiles(b *testing.B, call func() error) {
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		start := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}

func TestMatchDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget")
	}
	f := startFake(t)
	// The fake allocates; this answer does not.
	var q wire.MatchRequest
	reply, out := benchMatch(32), make([]byte, 0, wire.MaxFrame)
	f.on(wire.OpMatch, func(r *request) {
		if q.Decode(r.body) != nil {
			return
		}
		h := wire.Header{Kind: wire.Reply, Op: r.h.Op, Request: r.h.Request, Epoch: f.epoch}
		out, _ = wire.AppendFrame(out[:0], &h, &reply)
		r.send(out)
	})
	m := register(t, open(t, f), Binding{})
	var found Found
	query := MatchQuery{Keys: make([]profile.SegmentKey, 32)}
	n := testing.AllocsPerRun(200, func() {
		if err := m.Match(background, &query, &found); err != nil {
			t.Fatal(err)
		}
	})
	// One is what the fake allocates per request.
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// benchObject is an object of n bytes in one part, all in one extent, without a
// daemon behind it.
func benchObject(b testing.TB, n int64) *object {
	b.Helper()
	device, err := gpuipc.Open(gpuipc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	region, err := device.NewRegion(gpuipc.RegionSpec{Name: "bench", Bytes: n, Access: gpuipc.ClientReads, Huge: gpuipc.HugeNever})
	if err != nil {
		b.Fatal(err)
	}
	content := make([]byte, n)
	for i := range content {
		content[i] = byte(i * 7)
	}
	whole := []gpuipc.Extent{{Len: n}}
	if err := device.Store(background, gpuipc.Ref{Region: region, Extents: whole}, content); err != nil {
		b.Fatal(err)
	}
	digests := make([]uint64, gpuipc.Chunks(n))
	if err := device.Digests(background, gpuipc.Ref{Region: region, Extents: whole}, digests); err != nil {
		b.Fatal(err)
	}
	h, err := region.Export()
	if err != nil {
		b.Fatal(err)
	}
	mapping, err := gpuipc.Map(h, false)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { mapping.Close(); region.Close(); device.Close() })
	a, err := link.NewEnded(mapping, nil)
	if err != nil {
		b.Fatal(err)
	}
	layout := profile.Layout{Parts: []profile.Part{{Len: n}}, Bytes: n}
	o, err := newObject(&held{a: a}, layout, whole, digests)
	if err != nil {
		b.Fatal(err)
	}
	return &o
}

// BenchmarkRead is a copy out of a lease with its digests checked, beside a
// plain copy of the same bytes.
func BenchmarkRead(b *testing.B) {
	for _, mib := range []int64{1, 64} {
		n := mib << 20
		dst := make([]byte, n)
		b.Run(fmt.Sprintf("copy/MiB=%d", mib), func(b *testing.B) {
			src := benchObject(b, n).Part(0)
			b.SetBytes(n)
			for b.Loop() {
				copy(dst, src)
			}
		})
		b.Run(fmt.Sprintf("verified/MiB=%d", mib), func(b *testing.B) {
			o := benchObject(b, n)
			b.SetBytes(n)
			for b.Loop() {
				if err := o.Read(0, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
